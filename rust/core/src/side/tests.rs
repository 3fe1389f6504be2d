use super::*;

const PAGES: u32 = 8;

fn page(number: u32) -> PageIndex {
    PageIndex::new(number)
}

/// A class in which block `n - 1` has page `n`, pinned once, for `n` in `1 ..= pinned`.
fn side(pinned: u32, snapshots: bool) -> (Side, Pool) {
    let (mut side, mut pool) = (Side::new(PAGES, PAGES, snapshots), Pool::new(PAGES));
    let mut pages = Vec::new();
    pool.take(pinned, &mut pages);
    for (block, page) in (0..pinned).zip(pages) {
        side.insert(BlockId::new(block), page, block + 1);
    }
    (side, pool)
}

fn queued(side: &Side) -> Vec<u32> {
    let dump = side.dump().into_iter();
    let unpinned = dump.filter(|side| side.pins == 0);
    unpinned.map(|side| side.page).collect()
}

/// Pages that the pool holds free, those given back last at the end.
fn freed(pool: &Pool, last: usize) -> Vec<u32> {
    let free = pool.free_list();
    free[free.len() - last..]
        .iter()
        .map(|page| page.get())
        .collect()
}

#[test]
fn a_page_costs_what_decision_013_says() {
    assert_eq!(size_of::<Entry>(), 32);
    assert_eq!(size_of::<PageIndex>(), 4);
}

#[test]
fn what_was_left_behind_is_evicted_before_what_is_wanted() {
    let steps = Steps::new(false);
    let (mut side, mut pool) = side(4, false);
    side.want(page(1));
    side.want(page(3));
    for number in 1..=4 {
        side.unpin(page(number), &steps);
    }
    side.validate(&steps);
    assert_eq!(queued(&side), [2, 4, 1, 3]);
    assert_eq!(side.evictable(), 4);
    side.evict(3, &mut pool, &steps, |_, _| {});
    side.validate(&steps);
    assert_eq!(freed(&pool, 3), [2, 4, 1]);
    assert_eq!((queued(&side), side.cached()), (vec![3], 1));
    assert_eq!(side.page(BlockId::new(1)), PAGE_ZERO);
    assert_eq!(side.page(BlockId::new(2)), page(3));
}

#[test]
fn a_pin_takes_a_page_out_of_its_queue_and_the_last_unpin_puts_it_at_the_end() {
    let steps = Steps::new(false);
    let (mut side, _) = side(3, false);
    for number in 1..=3 {
        side.unpin(page(number), &steps);
    }
    side.pin(page(1), &steps);
    side.pin(page(1), &steps);
    assert_eq!((queued(&side), side.evictable()), (vec![2, 3], 2));
    side.unpin(page(1), &steps);
    assert_eq!((side.pins(page(1)), side.evictable()), (1, 2));
    side.unpin(page(1), &steps);
    side.validate(&steps);
    assert_eq!((queued(&side), side.evictable()), (vec![2, 3, 1], 3));
}

#[test]
fn a_page_waits_for_every_step_up_to_its_stamp() {
    let mut steps = Steps::new(false);
    let (mut side, mut pool) = side(3, false);
    let one = steps.begin(0.0).unwrap();
    side.unpin(page(1), &steps);
    let two = steps.begin(0.0).unwrap();
    side.unpin(page(2), &steps);
    side.unpin(page(3), &steps);
    assert_eq!((side.evictable(), side.waiting_total()), (0, 3));
    // The first step may still touch all three.
    steps.complete(two).unwrap();
    side.release_fenced(&steps);
    assert_eq!((side.evictable(), side.waiting_total()), (0, 3));
    // A page that is pinned while it waits no longer does.
    side.pin(page(3), &steps);
    assert_eq!(side.waiting_total(), 2);
    let three = steps.begin(0.0).unwrap();
    side.unpin(page(3), &steps);
    steps.complete(one).unwrap();
    side.release_fenced(&steps);
    side.validate(&steps);
    assert_eq!((side.evictable(), side.waiting_total()), (2, 1));
    assert!(side.is_evictable(page(2), &steps) && !side.is_evictable(page(3), &steps));
    side.evict(2, &mut pool, &steps, |_, _| {});
    assert_eq!(freed(&pool, 2), [1, 2]);
    steps.complete(three).unwrap();
    side.release_fenced(&steps);
    side.validate(&steps);
    assert_eq!((side.evictable(), side.waiting_total()), (1, 0));
}

#[test]
fn a_claimed_page_is_evicted_after_all_others() {
    let steps = Steps::new(false);
    let (mut side, mut pool) = side(4, false);
    side.want(page(3));
    side.want(page(4));
    for number in 1..=4 {
        side.unpin(page(number), &steps);
    }
    side.claim(page(1));
    side.claim(page(1));
    side.claim(page(3));
    side.evict(3, &mut pool, &steps, |_, _| {});
    assert_eq!(freed(&pool, 3), [2, 4, 1]);
    side.end_claims();
    side.validate(&steps);
    assert_eq!(queued(&side), [3]);
}

#[test]
fn a_detached_page_belongs_to_its_sequences_alone() {
    let steps = Steps::new(false);
    let (mut side, _) = side(2, false);
    assert!(side.detach(page(1)));
    assert!(!side.detach(page(1)), "it belongs to no block any more");
    side.validate(&steps);
    assert_eq!(side.page(BlockId::new(0)), PAGE_ZERO);
    assert_eq!((side.pins(page(1)), side.cached()), (0, 1));
    // The block may get another page.
    side.insert(BlockId::new(0), page(5), 0);
    side.validate(&steps);
    assert_eq!((side.page(BlockId::new(0)), side.cached()), (page(5), 2));
}

#[test]
fn a_page_that_is_handed_over_keeps_its_place_and_its_tokens() {
    let steps = Steps::new(false);
    let (mut side, mut pool) = side(3, true);
    for number in 1..=3 {
        side.unpin(page(number), &steps);
    }
    side.hand_over(BlockId::new(1), BlockId::new(7));
    side.validate(&steps);
    assert_eq!(side.page(BlockId::new(1)), PAGE_ZERO);
    assert_eq!(side.page(BlockId::new(7)), page(2));
    assert_eq!((queued(&side), side.covered(page(2))), (vec![1, 2, 3], 2));
    side.evict(2, &mut pool, &steps, |_, _| {});
    side.validate(&steps);
    assert_eq!(side.page(BlockId::new(7)), PAGE_ZERO);
}

#[test]
fn a_snapshot_makes_way_for_one_after_more_tokens() {
    let mut steps = Steps::new(false);
    let (mut side, mut pool) = side(3, true);
    let block = BlockId::new(1); // its snapshot stands after two tokens, on page 2
    assert!(!side.make_way(block, 3, &mut pool, &steps), "it is pinned");
    side.unpin(page(2), &steps);
    assert!(!side.make_way(block, 2, &mut pool, &steps));
    assert_eq!(side.page(block), page(2));
    assert!(side.make_way(block, 3, &mut pool, &steps));
    assert_eq!((side.page(block), freed(&pool, 1)), (PAGE_ZERO, vec![2]));
    assert!(side.make_way(block, 1, &mut pool, &steps), "there is none");
    // While a step that may read it is open, it is fenced.
    let step = steps.begin(0.0).unwrap();
    side.unpin(page(3), &steps);
    assert!(side.make_way(BlockId::new(2), 4, &mut pool, &steps));
    side.validate(&steps);
    let fenced: Vec<(u64, PageIndex)> = pool.fenced().collect();
    assert_eq!(fenced, [(step, page(3))]);
}
