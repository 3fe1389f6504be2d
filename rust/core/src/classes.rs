//! Classes by lifetime, and the order in which the ledger stores them.
//!
//! Callers number the classes as they like. Inside, pools and table rows stand by **place**: full
//! classes first (their pages stand in the nodes of the tree), then windowed ones, then states (both
//! have side pages), then cross-attention (private pages only). A ledger of full classes only is the
//! common one; there a place is the class.

use std::ops::Range;

use crate::error::LedgerError;
use crate::ids::count;
use crate::ledger::LedgerConfig;
use crate::window::{Lifetime, Window};

/// What a windowed class keeps.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WindowRule {
    /// What a sequence holds: with the lookahead, since a later match backs off by it.
    pub kept: Window,
    /// What a sequence that starts at a length reads.
    pub needed: Window,
    /// The most blocks that admission counts for one sequence; the largest number if there is no bound.
    pub bound: u32,
}

/// The classes of a ledger.
#[derive(Debug)]
pub(crate) struct Classes {
    /// The place of each class.
    place_of: Vec<usize>,
    /// The class at each place.
    class_at: Vec<u32>,
    full: usize,
    windows: Vec<WindowRule>,
    states: usize,
    /// Pages per sequence of each cross-attention class, and the tokens that they hold.
    cross: Vec<(u32, u32)>,
}

impl Classes {
    pub(crate) fn new(config: &LedgerConfig) -> Result<Self, LedgerError> {
        let kind = |lifetime: Lifetime| match lifetime {
            Lifetime::Full => 0,
            Lifetime::Window { .. } | Lifetime::Chunk { .. } => 1,
            Lifetime::State => 2,
            Lifetime::First { .. } => 3,
        };
        let lifetimes = &config.lifetimes;
        let mut order: Vec<usize> = (0..lifetimes.len()).collect();
        order.sort_by_key(|&class| kind(lifetimes[class])); // stable
        let mut place_of = vec![0; lifetimes.len()];
        for (place, &class) in order.iter().enumerate() {
            place_of[class] = place;
        }
        let of_kind = |wanted| {
            let classes = order.iter().map(|&class| lifetimes[class]);
            classes.filter(move |&lifetime| kind(lifetime) == wanted)
        };
        let windows = of_kind(1).map(|lifetime| window_rule(config, lifetime));
        let cross = of_kind(3).map(|lifetime| {
            let window = window(config, lifetime, 0)?;
            let Lifetime::First { tokens } = lifetime else {
                unreachable!("cross-attention keeps the first tokens")
            };
            Ok((pages_max(window.blocks_max(0)), pages_max(Some(tokens))))
        });
        Ok(Self {
            full: of_kind(0).count(),
            windows: windows.collect::<Result<_, LedgerError>>()?,
            states: of_kind(2).count(),
            cross: cross.collect::<Result<_, LedgerError>>()?,
            class_at: order.iter().map(|&class| count(class)).collect(),
            place_of,
        })
    }

    /// All classes.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.class_at.len()
    }

    /// Classes whose pages stand in the nodes of the tree; their places are `0..full`.
    #[inline]
    pub(crate) fn full(&self) -> usize {
        self.full
    }

    /// Whether every class is full.
    #[inline]
    pub(crate) fn all_full(&self) -> bool {
        self.full == self.class_at.len()
    }

    /// The windowed classes, whose places begin at `full()`.
    #[inline]
    pub(crate) fn windows(&self) -> &[WindowRule] {
        &self.windows
    }

    /// Places of classes whose rows have a column per block.
    #[inline]
    pub(crate) fn columns(&self) -> usize {
        self.full + self.windows.len()
    }

    /// Places of the states.
    pub(crate) fn states(&self) -> Range<usize> {
        self.columns()..self.columns() + self.states
    }

    /// Pages per sequence of the cross-attention classes, with their places.
    pub(crate) fn cross(&self) -> impl Iterator<Item = (usize, u32)> + '_ {
        let first = self.columns() + self.states;
        let pages = self.cross.iter().map(|&(pages, _)| pages);
        pages
            .enumerate()
            .map(move |(at, pages)| (first + at, pages))
    }

    /// Tokens of the encoder that a cross-attention class at a place keeps.
    pub(crate) fn cross_tokens(&self, place: usize) -> u32 {
        self.cross[place - self.states().end].1
    }

    /// The place of a class.
    #[inline]
    pub(crate) fn place(&self, class: usize) -> usize {
        self.place_of[class]
    }

    /// The class at a place.
    #[inline]
    pub(crate) fn class(&self, place: usize) -> u32 {
        self.class_at[place]
    }

    /// Places in the order of classes.
    #[inline]
    pub(crate) fn places(&self) -> &[usize] {
        &self.place_of
    }
}

fn window_rule(config: &LedgerConfig, lifetime: Lifetime) -> Result<WindowRule, LedgerError> {
    let kept = window(config, lifetime, config.lookahead)?;
    // Without a bound on the tokens of a step, there is none on what a sequence may hold at once.
    let ahead = (config.max_step_tokens > 0).then(|| {
        let most = config.max_step_tokens.max(config.reserve_tokens + 1);
        u64::from(most) + u64::from(config.extra_tokens)
    });
    Ok(WindowRule {
        kept,
        needed: window(config, lifetime, 0)?,
        bound: pages_max(ahead.and_then(|ahead| kept.blocks_max(ahead))),
    })
}

fn window(
    config: &LedgerConfig,
    lifetime: Lifetime,
    lookahead: u32,
) -> Result<Window, LedgerError> {
    let size = config.tokens_per_block.into();
    Window::new(lifetime, size, lookahead.into()).map_err(|error| LedgerError::Config {
        argument: error.field,
        value: error.value.into(),
        supported: "at least 1 token (0 sink tokens) and at most 2147483647",
    })
}

/// A number of pages; what has no limit, or one beyond all pools, is the largest number.
fn pages_max(blocks: Option<u64>) -> u32 {
    blocks.map_or(u32::MAX, |blocks| u32::try_from(blocks).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests;
