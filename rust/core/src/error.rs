//! What callers can do wrong. A shortage of pages is never an error: it is an answer.

use thiserror::Error;

/// Misuse of the ledger. Nothing has changed when one is returned.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum LedgerError {
    /// A configuration value outside what is supported.
    #[error("{argument} is {value}, must be {supported}")]
    Config {
        /// The argument.
        argument: &'static str,
        /// What was given.
        value: i128,
        /// What is supported.
        supported: &'static str,
    },
    /// Arrays of one call differ in length.
    #[error("{argument} has {len} items, expected {expected}")]
    LengthMismatch {
        /// The argument.
        argument: &'static str,
        /// Its length.
        len: usize,
        /// The length of the others.
        expected: usize,
    },
    /// A number of one item is outside its range.
    #[error("{argument}[{item}] is {value}, must be in {min}..={max}")]
    OutOfRange {
        /// The argument.
        argument: &'static str,
        /// The item.
        item: usize,
        /// What was given.
        value: i64,
        /// Smallest value allowed.
        min: i64,
        /// Largest value allowed.
        max: i64,
    },
    /// A token outside `[0, 2^31)` that is no media reference that is held.
    #[error(
        "token {position} of item {item} is {value}, must be in 0..=2147483647{}",
        if *value < 0 { ", or in a prompt a reference of intern_media" } else { "" }
    )]
    Token {
        /// The item.
        item: usize,
        /// The position of the token in what was given.
        position: usize,
        /// What was given.
        value: i64,
    },
    /// A handle of no open sequence.
    #[error("handle[{item}] = {handle} names no open sequence")]
    StaleHandle {
        /// The item.
        item: usize,
        /// The handle.
        handle: i64,
    },
    /// A handle twice in one call.
    #[error("handle[{item}] = {handle} appears twice in one call")]
    RepeatedHandle {
        /// The second item.
        item: usize,
        /// The handle.
        handle: i64,
    },
    /// A step that is not open.
    #[error("step {step} is not open (newest is {newest}, {open} open)")]
    StepNotOpen {
        /// The step.
        step: u64,
        /// The newest step begun.
        newest: u64,
        /// How many are open.
        open: usize,
    },
    /// The clock given to `begin_step` went backwards, or is not a finite number. Both are the bits of a float.
    #[error("now is {}, must be a finite number not below {}", f64::from_bits(*now), f64::from_bits(*last))]
    Clock {
        /// What was given.
        now: u64,
        /// What was given before.
        last: u64,
    },
    /// A lease that would not hold at all. Both are the bits of a float.
    #[error("until is {}, must be a number above {}, the newest step's now", f64::from_bits(*until), f64::from_bits(*now))]
    Until {
        /// What was given.
        until: u64,
        /// The clock.
        now: u64,
    },
    /// A number that no lease ever had.
    #[error("lease {lease} was never given")]
    UnknownLease {
        /// The number.
        lease: i64,
    },
    /// A step that was already widened for this sequence, or is older than one that was.
    #[error("handle[{item}] already has a width for step {recorded}, cannot grow for step {step}")]
    StepAlreadyGrown {
        /// The item.
        item: usize,
        /// The step asked for.
        step: u64,
        /// The newest step with a recorded width.
        recorded: u64,
    },
    /// `advance` for a step whose width is not the oldest recorded one.
    #[error(
        "handle[{item}] is not at step {step}: the oldest step it runs is {recorded} (0: none)"
    )]
    StepNotGrown {
        /// The item.
        item: usize,
        /// The step asked for.
        step: u64,
        /// The oldest step with a recorded width, 0 if there is none.
        recorded: u64,
    },
    /// The sequence runs a step whose results are not in.
    #[error("handle[{item}] = {handle} runs step {step}: advance it first")]
    StepInFlight {
        /// The item.
        item: usize,
        /// The handle.
        handle: i64,
        /// The oldest step with a recorded width.
        step: u64,
    },
    /// The sequence is suspended: it has no pages.
    #[error("handle[{item}] = {handle} is suspended: resume it first")]
    Suspended {
        /// The item.
        item: usize,
        /// The handle.
        handle: i64,
    },
    /// Only suspended sequences can be resumed.
    #[error("handle[{item}] = {handle} is not suspended")]
    NotSuspended {
        /// The item.
        item: usize,
        /// The handle.
        handle: i64,
    },
    /// Pages to copy are themselves destinations of copies that were never handed out by `moves`.
    #[error(
        "handle[{item}] = {handle} waits for {moves} page copies that were never taken by moves()"
    )]
    CopiesWaiting {
        /// The item.
        item: usize,
        /// The handle.
        handle: i64,
        /// Copies not taken.
        moves: usize,
    },
    /// Tokens were appended although the step did not run up to the end of what is known.
    #[error(
        "count[{item}] is {count}, but step {step} of that sequence ends at token {end} of {known} \
         known: a chunk that does not end the prompt appends nothing"
    )]
    AppendInsideKnown {
        /// The item.
        item: usize,
        /// Tokens given.
        count: i64,
        /// The step.
        step: u64,
        /// Where the step's tokens end.
        end: i64,
        /// Tokens known.
        known: i64,
    },
    /// The system does not have the memory for the ledger's lists and tables.
    #[error(
        "the ledger needs about {bytes} bytes for its records, pages and rows, which cannot be had"
    )]
    Memory {
        /// What it needs.
        bytes: u64,
    },
    /// The call needs all steps completed.
    #[error("cannot {call}: {open} steps are open")]
    StepsOpen {
        /// The call.
        call: &'static str,
        /// How many are open.
        open: usize,
    },
    /// The call needs all pages in place.
    #[error("cannot {call}: {transfers} loads and transfers are under way")]
    TransfersOpen {
        /// The call.
        call: &'static str,
        /// How many are under way.
        transfers: usize,
    },
    /// A pool would not hold what must stay in it.
    #[error(
        "num_pages[{class}] is {given}, must be at least {needed}: page 0, and what is owned and not \
         evictable, promised, guarded, or needed by an open sequence"
    )]
    PoolTooSmall {
        /// The class.
        class: usize,
        /// The fewest pages possible now.
        needed: u64,
        /// What was given.
        given: u32,
    },
    /// A trial in a trial, or the end of one that did not begin.
    #[error("{}", if *open { "a trial has begun already: end it first" } else { "no trial has begun" })]
    Trial {
        /// Whether one is open.
        open: bool,
    },
    /// A floor beyond what other floors and the open sequences leave.
    #[error(
        "floor_blocks of scope {scope} is {floor}, must be in 0..={most}: what other floors and the open \
         sequences leave"
    )]
    FloorTooHigh {
        /// The scope.
        scope: i32,
        /// What was given.
        floor: u32,
        /// The largest floor possible now.
        most: u64,
    },
    /// More tokens than the sequence may come to know.
    #[error(
        "count[{item}] is {count}, but that sequence knows {known} tokens of the {max_total} it was admitted \
         for (max_total)"
    )]
    BeyondMaxTotal {
        /// The item.
        item: usize,
        /// Tokens given.
        count: i64,
        /// Tokens known.
        known: u32,
        /// The most there may be.
        max_total: u32,
    },
    /// A node of a draft tree that cannot stand where it does in a path.
    #[error(
        "path[{item}] has node {node} at {position}, must be in {min}..={max}: node 0 first, then ascending, \
         below the width of the step"
    )]
    PathNode {
        /// The item.
        item: usize,
        /// The place in the path.
        position: usize,
        /// What was given.
        node: i64,
        /// Smallest node allowed there.
        min: i64,
        /// Largest node allowed there.
        max: i64,
    },
    /// Copies of a step that completes were never handed out by `moves`.
    #[error("step {step} cannot complete: {moves} of its page copies were never taken by moves()")]
    MovesNotTaken {
        /// The step.
        step: u64,
        /// Copies not taken.
        moves: usize,
    },
    /// The call needs all sequences closed.
    #[error("cannot {call}: {open} sequences are open")]
    SequencesOpen {
        /// The call.
        call: &'static str,
        /// How many are open.
        open: usize,
    },
    /// A scope that was never interned, or that nobody holds any more.
    #[error(
        "scope[{item}] is {scope}, which is no scope that intern_scope gave and somebody holds"
    )]
    UnknownScope {
        /// The item.
        item: usize,
        /// What was given.
        scope: i64,
    },
    /// A media reference that was never given, or that nobody holds any more.
    #[error("{reference} is no media reference that intern_media gave and somebody holds")]
    UnknownMedia {
        /// What was given.
        reference: i64,
    },
    /// Events were asked for, but none are logged.
    #[error("events are off: the ledger was built with events=0")]
    EventsOff,
    /// Events that are not kept any more, or not there yet.
    #[error(
        "events after {after} are asked for, but those there are begin at {oldest} and the last number is \
         {last}: take event_snapshot()"
    )]
    EventsGone {
        /// The number asked for.
        after: u64,
        /// The oldest number kept.
        oldest: u64,
        /// The newest number.
        last: u64,
    },
    /// The sequence waits for pages from lower tiers.
    #[error(
        "handle[{item}] = {handle} waits for pages of lower tiers: complete its transfers first"
    )]
    Loading {
        /// The item.
        item: usize,
        /// The handle.
        handle: i64,
    },
    /// A transfer that was not handed out, or is completed.
    #[error("ids[{item}] is {id}, which is no transfer that was handed out and is not completed")]
    UnknownTransfer {
        /// The item.
        item: usize,
        /// What was given.
        id: i64,
    },
    /// A page of a lower tier that does not exist or is in use.
    #[error("pages[{item}] is {page}, must be a free page in 0..{pages}, once")]
    PageInUse {
        /// The item.
        item: usize,
        /// What was given.
        page: i64,
        /// Pages of the shelf on that tier.
        pages: u32,
    },
    /// A key that has an entry.
    #[error("keys[{item}] is there already, or appears twice")]
    KnownKey {
        /// The item.
        item: usize,
    },
    /// An output buffer is too small; nothing was consumed.
    #[error("{argument} holds {len} rows, {required} are needed")]
    BufferTooSmall {
        /// The argument.
        argument: &'static str,
        /// Its length in rows.
        len: usize,
        /// The length needed.
        required: usize,
    },
}

impl LedgerError {
    /// A short, stable name of the kind of error.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Config { .. } => "config",
            Self::LengthMismatch { .. } => "length_mismatch",
            Self::OutOfRange { .. } => "out_of_range",
            Self::Token { .. } => "token",
            Self::StaleHandle { .. } => "stale_handle",
            Self::RepeatedHandle { .. } => "repeated_handle",
            Self::StepNotOpen { .. } => "step_not_open",
            Self::Clock { .. } => "clock_backwards",
            Self::Until { .. } => "until",
            Self::UnknownLease { .. } => "unknown_lease",
            Self::StepAlreadyGrown { .. } => "step_already_grown",
            Self::StepNotGrown { .. } => "step_not_grown",
            Self::StepInFlight { .. } => "step_in_flight",
            Self::Suspended { .. } => "suspended",
            Self::NotSuspended { .. } => "not_suspended",
            Self::CopiesWaiting { .. } => "copies_waiting",
            Self::AppendInsideKnown { .. } => "append_inside_known",
            Self::Memory { .. } => "memory",
            Self::StepsOpen { .. } => "steps_open",
            Self::TransfersOpen { .. } => "transfers_open",
            Self::PoolTooSmall { .. } => "pool_too_small",
            Self::Trial { .. } => "trial",
            Self::FloorTooHigh { .. } => "floor_too_high",
            Self::BeyondMaxTotal { .. } => "beyond_max_total",
            Self::PathNode { .. } => "path_node",
            Self::MovesNotTaken { .. } => "moves_not_taken",
            Self::SequencesOpen { .. } => "sequences_open",
            Self::UnknownScope { .. } => "unknown_scope",
            Self::UnknownMedia { .. } => "unknown_media",
            Self::EventsOff => "events_off",
            Self::EventsGone { .. } => "events_gone",
            Self::Loading { .. } => "loading",
            Self::UnknownTransfer { .. } => "unknown_transfer",
            Self::PageInUse { .. } => "page_in_use",
            Self::KnownKey { .. } => "known_key",
            Self::BufferTooSmall { .. } => "buffer_too_small",
        }
    }

    /// The numbers of the message, by name.
    #[must_use]
    #[expect(clippy::too_many_lines, reason = "one arm per kind of error")]
    pub fn details(&self) -> Vec<(&'static str, i128)> {
        match *self {
            Self::Config { value, .. } => vec![("value", value)],
            Self::LengthMismatch { len, expected, .. } => {
                vec![("len", len as i128), ("expected", expected as i128)]
            }
            Self::OutOfRange {
                item,
                value,
                min,
                max,
                ..
            } => vec![
                ("item", item as i128),
                ("value", value.into()),
                ("min", min.into()),
                ("max", max.into()),
            ],
            Self::Token {
                item,
                position,
                value,
            } => {
                vec![
                    ("item", item as i128),
                    ("position", position as i128),
                    ("value", value.into()),
                ]
            }
            Self::StaleHandle { item, handle }
            | Self::RepeatedHandle { item, handle }
            | Self::Suspended { item, handle }
            | Self::NotSuspended { item, handle }
            | Self::Loading { item, handle } => {
                vec![("item", item as i128), ("handle", handle.into())]
            }
            Self::StepNotOpen { step, newest, open } => {
                vec![
                    ("step", step.into()),
                    ("newest", newest.into()),
                    ("open", open as i128),
                ]
            }
            Self::Clock { .. } | Self::Until { .. } | Self::Trial { .. } | Self::EventsOff => {
                vec![]
            }
            Self::UnknownLease { lease } => vec![("lease", lease.into())],
            Self::StepAlreadyGrown {
                item,
                step,
                recorded,
            }
            | Self::StepNotGrown {
                item,
                step,
                recorded,
            } => {
                vec![
                    ("item", item as i128),
                    ("step", step.into()),
                    ("recorded", recorded.into()),
                ]
            }
            Self::StepInFlight { item, handle, step } => vec![
                ("item", item as i128),
                ("handle", handle.into()),
                ("step", step.into()),
            ],
            Self::CopiesWaiting {
                item,
                handle,
                moves,
            } => vec![
                ("item", item as i128),
                ("handle", handle.into()),
                ("moves", moves as i128),
            ],
            Self::AppendInsideKnown {
                item,
                count,
                step,
                end,
                known,
            } => vec![
                ("item", item as i128),
                ("count", count.into()),
                ("step", step.into()),
                ("end", end.into()),
                ("known", known.into()),
            ],
            Self::Memory { bytes } => vec![("bytes", bytes.into())],
            Self::StepsOpen { open, .. } => vec![("open_steps", open as i128)],
            Self::TransfersOpen { transfers, .. } => vec![("transfers", transfers as i128)],
            Self::PoolTooSmall {
                class,
                needed,
                given,
            } => vec![
                ("class_index", class as i128),
                ("needed", needed.into()),
                ("given", given.into()),
            ],
            Self::FloorTooHigh { scope, floor, most } => vec![
                ("scope", scope.into()),
                ("floor", floor.into()),
                ("most", most.into()),
            ],
            Self::BeyondMaxTotal {
                item,
                count,
                known,
                max_total,
            } => vec![
                ("item", item as i128),
                ("count", count.into()),
                ("known", known.into()),
                ("max_total", max_total.into()),
            ],
            Self::PathNode {
                item,
                position,
                node,
                min,
                max,
            } => vec![
                ("item", item as i128),
                ("position", position as i128),
                ("node", node.into()),
                ("min", min.into()),
                ("max", max.into()),
            ],
            Self::MovesNotTaken { step, moves } => {
                vec![("step", step.into()), ("moves", moves as i128)]
            }
            Self::SequencesOpen { open, .. } => vec![("open_sequences", open as i128)],
            Self::UnknownScope { item, scope } => {
                vec![("item", item as i128), ("scope", scope.into())]
            }
            Self::EventsGone {
                after,
                oldest,
                last,
            } => vec![
                ("after", after.into()),
                ("oldest", oldest.into()),
                ("last", last.into()),
            ],
            Self::UnknownMedia { reference } => vec![("reference", reference.into())],
            Self::UnknownTransfer { item, id } => {
                vec![("item", item as i128), ("id", id.into())]
            }
            Self::PageInUse { item, page, pages } => vec![
                ("item", item as i128),
                ("page", page.into()),
                ("pages", pages.into()),
            ],
            Self::KnownKey { item } => vec![("item", item as i128)],
            Self::BufferTooSmall { len, required, .. } => {
                vec![("len", len as i128), ("required", required as i128)]
            }
        }
    }
}
