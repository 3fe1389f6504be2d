//! Which blocks of a sequence a cache group keeps: the one answer for pruning, matching and sizing.
//!
//! With `h` tokens settled, the token in flight is at position `h`, and a window of `W` tokens is
//! the positions `[h + 1 - W, h]`. A chunk of `C` tokens keeps `[h // C * C, h]`. Everything before
//! is stale, apart from the sinks, the first tokens of the sequence. The largest number of blocks
//! that a window can keep is this function at its worst offset, never a formula beside it.
//!
//! A draft that reads `D` later tokens backs a match off by `D`, so a window is kept as it was `D`
//! tokens ago.

use thiserror::Error;

/// Tokens are signed 32-bit in the ledger's arrays; products of two such numbers fit 64 bits.
pub const TOKENS_MAX: u64 = i32::MAX as u64;

/// How long a cache group keeps a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lifetime {
    /// As long as the sequence: full attention.
    Full,
    /// While it is one of the last `tokens`, the one in flight included, or of the first `sinks`.
    Window {
        /// Tokens of the window, at least 1.
        tokens: u64,
        /// First tokens that are kept besides.
        sinks: u64,
    },
    /// While its chunk of `tokens` tokens is the one in flight.
    Chunk {
        /// Tokens of a chunk, at least 1.
        tokens: u64,
    },
    /// Only the first `tokens` tokens: those of an encoder, written once.
    First {
        /// Most tokens, at least 1.
        tokens: u64,
    },
    /// No token: the sequence has one page, its state.
    State,
}

impl Lifetime {
    /// The rule that holds for sequences of at most `max_seq_len` tokens: a window or chunk that no
    /// sequence outgrows keeps everything.
    #[must_use]
    pub fn resolved(self, max_seq_len: u64, lookahead: u64) -> Self {
        match self {
            Self::Window { tokens, .. } | Self::Chunk { tokens }
                if tokens.saturating_add(lookahead) >= max_seq_len =>
            {
                Self::Full
            }
            other => other,
        }
    }
}

/// The blocks that a sequence keeps: `0..sinks` and `start..end`; those between are stale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LiveBlocks {
    /// End of the sink blocks, at most `start`.
    pub sinks: u64,
    /// First block of the window.
    pub start: u64,
    /// One past the last block that has room.
    pub end: u64,
}

impl LiveBlocks {
    /// Blocks kept.
    #[must_use]
    pub fn count(self) -> u64 {
        self.sinks + (self.end - self.start)
    }
}

/// A length outside what the window function takes.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{field} is {value}; {least} to {TOKENS_MAX} tokens are supported")]
pub struct WindowError {
    /// The field's name.
    pub field: &'static str,
    /// Its value.
    pub value: u64,
    /// Smallest value supported.
    pub least: u64,
}

/// A lifetime over blocks of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Window {
    lifetime: Lifetime,
    tokens_per_block: u64,
    lookahead: u64,
}

impl Window {
    /// The rule of a group whose blocks hold `tokens_per_block` tokens. `lookahead` is how many
    /// tokens a match backs off, 0 where nothing is matched.
    ///
    /// # Errors
    /// [`WindowError`] for a length of 0 (sinks and lookahead may be 0) or above [`TOKENS_MAX`].
    pub fn new(
        lifetime: Lifetime,
        tokens_per_block: u64,
        lookahead: u64,
    ) -> Result<Self, WindowError> {
        let check = |field, value, least| {
            if (least..=TOKENS_MAX).contains(&value) {
                return Ok(());
            }
            Err(WindowError {
                field,
                value,
                least,
            })
        };
        check("tokens_per_block", tokens_per_block, 1)?;
        check("lookahead", lookahead, 0)?;
        match lifetime {
            Lifetime::Window { tokens, sinks } => {
                check("window", tokens, 1)?;
                check("sink_tokens", sinks, 0)?;
            }
            Lifetime::Chunk { tokens } => check("chunk", tokens, 1)?,
            Lifetime::First { tokens } => check("tokens kept", tokens, 1)?,
            Lifetime::Full | Lifetime::State => {}
        }
        Ok(Self {
            lifetime,
            tokens_per_block,
            lookahead,
        })
    }

    /// The blocks kept with `history` tokens settled and room for `ahead` more.
    ///
    /// Both are lengths of sequences: their sum stays far below 2^63.
    #[must_use]
    pub fn live(self, history: u64, ahead: u64) -> LiveBlocks {
        let block = self.tokens_per_block;
        let reusable = history.saturating_sub(self.lookahead);
        let (first, sink_tokens) = match self.lifetime {
            Lifetime::Full => (0, 0),
            Lifetime::Window { tokens, sinks } => ((reusable + 1).saturating_sub(tokens), sinks),
            Lifetime::Chunk { tokens } => (reusable / tokens * tokens, 0),
            Lifetime::First { tokens } => {
                let end = (history + ahead).min(tokens).div_ceil(block);
                return LiveBlocks {
                    sinks: 0,
                    start: 0,
                    end,
                };
            }
            // One page, whatever the tokens.
            Lifetime::State => {
                return LiveBlocks {
                    sinks: 0,
                    start: 0,
                    end: 1,
                };
            }
        };
        let sinks = history.div_ceil(block).min(sink_tokens.div_ceil(block));
        LiveBlocks {
            sinks,
            start: sinks.max(first / block),
            end: (history + ahead).div_ceil(block),
        }
    }

    /// A history up to which [`Window::live`], with nothing ahead, has the sinks and the start that it has
    /// now: what is given up between two histories is asked for only beyond it.
    #[must_use]
    pub fn steady_until(self, history: u64) -> u64 {
        let block = self.tokens_per_block;
        let live = self.live(history, 0);
        match self.lifetime {
            Lifetime::Full | Lifetime::First { .. } | Lifetime::State => u64::MAX,
            Lifetime::Window { tokens, sinks } => {
                let moves = (live.start + 1) * block + tokens - 1 + self.lookahead;
                let more_sinks = if live.sinks < sinks.div_ceil(block) {
                    live.sinks * block + 1
                } else {
                    u64::MAX
                };
                moves.min(more_sinks) - 1
            }
            Lifetime::Chunk { tokens } => {
                let reusable = history.saturating_sub(self.lookahead);
                (reusable / tokens + 1) * tokens + self.lookahead - 1
            }
        }
    }

    /// The most blocks that [`Window::live`] keeps at any history; `None` where that has no limit.
    #[must_use]
    pub fn blocks_max(self, ahead: u64) -> Option<u64> {
        let worst = match self.lifetime {
            Lifetime::Full => return None,
            Lifetime::First { tokens } => tokens,
            Lifetime::State => 0,
            // The window starts at the last token of the first block behind the sinks.
            Lifetime::Window { tokens, sinks } => {
                let behind = sinks.div_ceil(self.tokens_per_block) + 1;
                behind * self.tokens_per_block - 1 + tokens - 1 + self.lookahead
            }
            // The last token of the chunk that starts latest inside a block.
            Lifetime::Chunk { tokens } => {
                let chunk = latest_chunk(tokens, self.tokens_per_block);
                chunk * tokens + tokens - 1 + self.lookahead
            }
        };
        Some(self.live(worst, ahead).count())
    }

    /// The most blocks that a sequence keeps until `tokens` tokens are settled.
    #[must_use]
    pub fn blocks(self, tokens: u64, ahead: u64) -> u64 {
        if self.lifetime == Lifetime::State {
            return 1;
        }
        let all = (tokens + ahead).div_ceil(self.tokens_per_block);
        // Blocks only become stale once the bound is reached, so until then all are kept.
        self.blocks_max(ahead).map_or(all, |most| most.min(all))
    }
}

/// The number of a chunk whose first token lies as late inside its block as any chunk's does.
///
/// Chunk k starts at `k * chunk`, so at multiples of `g = gcd(chunk, block)` inside a block; the
/// latest is `block - g`, where `k * (chunk / g) = -1` modulo `block / g`.
fn latest_chunk(chunk: u64, block: u64) -> u64 {
    let divisor = gcd(chunk, block);
    let (step, period) = (chunk / divisor % (block / divisor), block / divisor);
    if period == 1 {
        return 0;
    }
    period - inverse(step, period)
}

fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// The inverse of `a` modulo `m`, by Euclid's algorithm; `a` and `m` have no common divisor.
fn inverse(a: u64, m: u64) -> u64 {
    let modulus = i128::from(m);
    let (mut rest, mut next_rest) = (modulus, i128::from(a));
    let (mut factor, mut next_factor) = (0, 1);
    while next_rest > 0 {
        let quotient = rest / next_rest;
        (rest, next_rest) = (next_rest, rest - quotient * next_rest);
        (factor, next_factor) = (next_factor, factor - quotient * next_factor);
    }
    u64::try_from(factor.rem_euclid(modulus)).expect("a remainder is below its modulus")
}

#[cfg(test)]
mod tests {
    use super::{Lifetime, LiveBlocks, TOKENS_MAX, Window, WindowError};
    use proptest::prelude::*;

    fn window(tokens: u64, sinks: u64, block: u64) -> Window {
        Window::new(Lifetime::Window { tokens, sinks }, block, 0).unwrap()
    }

    #[test]
    fn a_window_that_starts_inside_a_block_touches_one_more() {
        // vllm#48959: 98,012 cached tokens, window 4,096, blocks of 32.
        let live = window(4096, 0, 32).live(98_012, 0);
        let expected = LiveBlocks {
            sinks: 0,
            start: 2934,
            end: 3063,
        };
        assert_eq!((live, live.count()), (expected, 129));
        assert_eq!(window(4096, 0, 32).blocks_max(0), Some(129));
    }

    #[test]
    fn the_length_of_a_sequence_does_not_matter_to_a_window() {
        // TensorRT-LLM#12968: window 512, blocks of 64, 10,000 tokens: 8, or 9 unaligned, not 157.
        assert_eq!(window(512, 0, 64).live(10_000, 1).count(), 9);
        assert_eq!(window(512, 0, 64).blocks(10_000, 1), 9);
        assert_eq!(window(512, 0, 64).blocks(100, 1), 2);
    }

    #[test]
    fn sinks_and_window_are_kept_and_the_middle_is_stale() {
        let live = window(64, 20, 16).live(1_000, 1);
        let expected = LiveBlocks {
            sinks: 2,
            start: 58,
            end: 63,
        };
        assert_eq!(live, expected);
        // Short sequences have no middle.
        assert_eq!(window(64, 20, 16).live(50, 1).count(), 4);
        assert_eq!(window(64, 20, 16).live(3, 0).count(), 1);
    }

    #[test]
    fn a_chunk_is_dropped_when_the_next_one_starts() {
        let chunk = Window::new(Lifetime::Chunk { tokens: 8192 }, 32, 0).unwrap();
        assert_eq!(chunk.live(8191, 1).count(), 256);
        assert_eq!(chunk.live(8192, 1).count(), 1);
        assert_eq!(chunk.blocks_max(1), Some(256));
        // With 5 tokens in flight the next chunk begins before this one is dropped.
        assert_eq!(chunk.blocks_max(5), Some(257));
    }

    #[test]
    fn nothing_is_given_up_before_the_steady_history_is_passed() {
        // (window or chunk, sinks, block, lookahead)
        for (tokens, sinks, block, lookahead) in [
            (64, 20, 16, 0),
            (64, 0, 16, 3),
            (1, 40, 16, 1),
            (50, 5, 4, 2),
            (7, 0, 32, 5),
        ] {
            for lifetime in [
                Lifetime::Window { tokens, sinks },
                Lifetime::Chunk { tokens },
            ] {
                let rule = Window::new(lifetime, block, lookahead).unwrap();
                let edge = |history| {
                    let live = rule.live(history, 0);
                    (live.sinks, live.start)
                };
                for history in 0..400 {
                    let until = rule.steady_until(history);
                    assert!(until >= history, "{rule:?} {history}");
                    assert!((history..=until).all(|later| edge(later) == edge(history)));
                    if matches!(lifetime, Lifetime::Window { .. }) {
                        assert_ne!(edge(until + 1), edge(history), "{rule:?} {history}");
                    }
                }
            }
        }
    }

    #[test]
    fn states_and_first_tokens_have_their_size() {
        let state = Window::new(Lifetime::State, 32, 1).unwrap();
        assert_eq!((state.blocks_max(9), state.blocks(0, 0)), (Some(1), 1));
        let first = Window::new(Lifetime::First { tokens: 1500 }, 64, 1).unwrap();
        assert_eq!(first.blocks_max(8), Some(24));
        assert_eq!(first.blocks(100, 0), 2);
    }

    #[test]
    fn a_window_that_no_sequence_outgrows_is_full() {
        let window = Lifetime::Window {
            tokens: 4096,
            sinks: 0,
        };
        assert_eq!(window.resolved(4096, 0), Lifetime::Full);
        assert_eq!(window.resolved(4097, 1), Lifetime::Full);
        assert_eq!(window.resolved(4097, 0), window);
    }

    #[test]
    fn lengths_that_cannot_be_are_refused() {
        let error = |field, value, least| {
            Err(WindowError {
                field,
                value,
                least,
            })
        };
        let refused = |lifetime, block, lookahead| Window::new(lifetime, block, lookahead);
        assert_eq!(
            refused(Lifetime::Full, 0, 0),
            error("tokens_per_block", 0, 1)
        );
        let chunk = Lifetime::Chunk { tokens: 0 };
        assert_eq!(refused(chunk, 32, 0), error("chunk", 0, 1));
        let above = TOKENS_MAX + 1;
        let wide = Lifetime::Window {
            tokens: above,
            sinks: 0,
        };
        assert_eq!(refused(wide, 32, 0), error("window", above, 1));
        assert_eq!(
            refused(Lifetime::State, 32, above),
            error("lookahead", above, 0)
        );
    }

    fn lifetimes() -> impl Strategy<Value = Lifetime> {
        prop_oneof![
            (1_u64..200, 0_u64..60).prop_map(|(tokens, sinks)| Lifetime::Window { tokens, sinks }),
            (1_u64..200).prop_map(|tokens| Lifetime::Chunk { tokens }),
            (1_u64..200).prop_map(|tokens| Lifetime::First { tokens }),
        ]
    }

    /// Positions that the next token may attend to, or that a match backed off by `lookahead` may.
    fn needed(lifetime: Lifetime, history: u64, lookahead: u64) -> Vec<u64> {
        let keeps = |position: u64, at: u64| match lifetime {
            Lifetime::Window { tokens, sinks } => position < sinks || position + tokens > at,
            Lifetime::Chunk { tokens } => position / tokens == at / tokens,
            Lifetime::First { tokens } => position < tokens,
            Lifetime::Full | Lifetime::State => true,
        };
        let at = history.saturating_sub(lookahead);
        (0..history)
            .filter(|&position| keeps(position, history) || keeps(position, at))
            .collect()
    }

    proptest! {
        #[test]
        fn the_bound_is_met_and_never_exceeded(
            lifetime in lifetimes(), block in 1_u64..40, lookahead in 0_u64..6, ahead in 0_u64..30,
        ) {
            let window = Window::new(lifetime, block, lookahead).unwrap();
            // Every offset of a window or chunk against the blocks comes up below this.
            let counts = (0..200 * block + 400).map(|h| window.live(h, ahead).count());
            prop_assert_eq!(counts.max(), window.blocks_max(ahead));
        }

        #[test]
        fn every_position_that_is_needed_is_kept(
            lifetime in lifetimes(), block in 1_u64..40, lookahead in 0_u64..6,
            history in 0_u64..800, ahead in 0_u64..30,
        ) {
            let window = Window::new(lifetime, block, lookahead).unwrap();
            let live = window.live(history, ahead);
            prop_assert!(live.sinks <= live.start && live.start <= live.end);
            for position in needed(lifetime, history, lookahead) {
                let ordinal = position / block;
                let kept = ordinal < live.sinks || (live.start..live.end).contains(&ordinal);
                prop_assert!(kept, "position {} of block {}", position, ordinal);
            }
        }

        #[test]
        fn what_a_sequence_keeps_up_to_a_length_is_bounded(
            lifetime in lifetimes(), block in 1_u64..40, tokens in 0_u64..600, ahead in 0_u64..30,
        ) {
            let window = Window::new(lifetime, block, 0).unwrap();
            let most = (0..=tokens).map(|h| window.live(h, ahead).count()).max().unwrap();
            prop_assert!(most <= window.blocks(tokens, ahead));
            if !matches!(lifetime, Lifetime::Chunk { .. }) {
                prop_assert_eq!(most, window.blocks(tokens, ahead));
            }
        }
    }
}
