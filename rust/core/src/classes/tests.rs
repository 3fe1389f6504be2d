use super::*;
use crate::prefix::EvictionPolicy;

fn config(lifetimes: Vec<Lifetime>) -> LedgerConfig {
    LedgerConfig {
        tokens_per_block: 2,
        num_pages: vec![20; lifetimes.len()],
        host_pages: Vec::new(),
        disk_pages: Vec::new(),
        lifetimes,
        max_step_tokens: 0,
        num_blocks: None,
        snapshot_interval: 0,
        max_sequences: 2,
        max_seq_len: 20,
        has_draft: false,
        extra_tokens: 0,
        reserve_tokens: 0,
        lookahead: 0,
        reuse: true,
        partial_reuse: true,
        same_stream: false,
        watermark_blocks: 0,
        ttl_ms: 0,
        max_leased_blocks: 0,
        policy: EvictionPolicy::Lru,
    }
}

const SLIDING: Lifetime = Lifetime::Window {
    tokens: 4,
    sinks: 0,
};

#[test]
fn places_go_by_kind_and_keep_the_order_within_one() {
    let classes = Classes::new(&config(vec![
        Lifetime::First { tokens: 5 },
        Lifetime::State,
        SLIDING,
        Lifetime::Full,
        Lifetime::Chunk { tokens: 4 },
        Lifetime::Full,
    ]))
    .unwrap();
    let at: Vec<u32> = (0..classes.len())
        .map(|place| classes.class(place))
        .collect();
    assert_eq!(at, [3, 5, 2, 4, 1, 0]);
    assert_eq!(classes.places(), [5, 4, 2, 0, 3, 1]);
    assert!((0..classes.len()).all(|class| classes.class(classes.place(class)) as usize == class));
    assert_eq!((classes.full(), classes.columns()), (2, 4));
    assert_eq!((classes.windows().len(), classes.states()), (2, 4..5));
    assert!(!classes.all_full());
    // Five tokens of an encoder fill three blocks of two.
    assert_eq!(classes.cross().collect::<Vec<_>>(), [(5, 3)]);
    assert_eq!(classes.cross_tokens(5), 5);
}

#[test]
fn with_full_classes_only_a_place_is_the_class() {
    let classes = Classes::new(&config(vec![Lifetime::Full; 3])).unwrap();
    assert!(classes.all_full());
    assert_eq!(classes.places(), [0, 1, 2]);
    assert!(classes.states().is_empty() && classes.cross().next().is_none());
}

#[test]
fn a_window_is_bounded_only_if_a_step_is() {
    let bound = |max_step_tokens, reserve_tokens, extra_tokens| {
        let config = LedgerConfig {
            max_step_tokens,
            extra_tokens,
            reserve_tokens,
            ..config(vec![SLIDING])
        };
        Classes::new(&config).unwrap().windows()[0].bound
    };
    assert_eq!(bound(0, 0, 0), u32::MAX);
    // Three tokens behind and three of the step: six in a row touch at most four blocks of two.
    assert_eq!(bound(3, 0, 0), 4);
    // Room for one token and five drafts is more than a step of three: nine tokens, five blocks.
    assert_eq!(bound(3, 5, 0), 5);
    assert_eq!(bound(3, 0, 3), 5);
}

#[test]
fn a_sequence_holds_its_window_and_the_lookahead() {
    let config = LedgerConfig {
        has_draft: true,
        lookahead: 3,
        ..config(vec![SLIDING])
    };
    let classes = Classes::new(&config).unwrap();
    let rule = classes.windows()[0];
    // At ten tokens attention reads from token 7 on, and a match that backs off to seven from token 4.
    assert_eq!(rule.needed.live(10, 0).start, 3);
    assert_eq!(rule.kept.live(10, 0).start, 2);
}

#[test]
fn an_empty_window_is_refused() {
    let empty = Lifetime::Window {
        tokens: 0,
        sinks: 0,
    };
    let error = Classes::new(&config(vec![Lifetime::Full, empty])).unwrap_err();
    assert!(matches!(error, LedgerError::Config { value: 0, .. }));
}
