//! Steps in flight, and the question that makes free pages safe: has a fence passed?

use std::collections::VecDeque;

use crate::error::LedgerError;

/// Numbers of steps that have begun and not completed, in ascending order.
#[derive(Debug)]
pub(crate) struct Steps {
    newest: u64,
    open: VecDeque<u64>,
    /// Bits of the last `now`, compared as a float and kept as bits for the digest.
    now: f64,
    same_stream: bool,
    /// The newest step that copies were queued for, which are fenced in any case: copies handed out
    /// together run in no order, so none may write what another one reads or writes.
    copies: u64,
}

impl Steps {
    pub(crate) fn new(same_stream: bool) -> Self {
        Self {
            newest: 0,
            open: VecDeque::new(),
            now: f64::NEG_INFINITY,
            same_stream,
            copies: 0,
        }
    }

    /// Checks that the clock may go to `now`.
    pub(crate) fn check_clock(&self, now: f64) -> Result<(), LedgerError> {
        if !now.is_finite() || now < self.now {
            return Err(LedgerError::Clock {
                now: now.to_bits(),
                last: self.now.to_bits(),
            });
        }
        Ok(())
    }

    pub(crate) fn begin(&mut self, now: f64) -> Result<u64, LedgerError> {
        self.check_clock(now)?;
        self.now = now;
        self.newest += 1;
        self.open.push_back(self.newest);
        Ok(self.newest)
    }

    pub(crate) fn complete(&mut self, step: u64) -> Result<(), LedgerError> {
        let place = self.check_open(step)?;
        self.open.remove(place);
        Ok(())
    }

    /// Where an open step stands in the list.
    pub(crate) fn check_open(&self, step: u64) -> Result<usize, LedgerError> {
        self.open
            .binary_search(&step)
            .map_err(|_| LedgerError::StepNotOpen {
                step,
                newest: self.newest,
                open: self.open.len(),
            })
    }

    /// Checks that a step has begun; it may have completed.
    pub(crate) fn check_begun(&self, step: u64) -> Result<(), LedgerError> {
        if step == 0 || step > self.newest {
            return Err(LedgerError::StepNotOpen {
                step,
                newest: self.newest,
                open: self.open.len(),
            });
        }
        Ok(())
    }

    /// The stamp of a page whose last user leaves now.
    #[inline]
    pub(crate) fn stamp(&self) -> u64 {
        if self.same_stream {
            self.copies
        } else {
            self.newest
        }
    }

    /// Notes that copies were queued for an open step: with `same_stream`, what is given up while it is
    /// open waits for it.
    pub(crate) fn fence_copies(&mut self, step: u64) {
        self.copies = self.copies.max(step);
    }

    pub(crate) fn copies(&self) -> u64 {
        self.copies
    }

    /// Whether every step that may touch a page with this stamp has completed.
    #[inline]
    pub(crate) fn passed(&self, stamp: u64) -> bool {
        self.open.front().is_none_or(|&oldest| oldest > stamp)
    }

    pub(crate) fn newest(&self) -> u64 {
        self.newest
    }

    pub(crate) fn open(&self) -> &VecDeque<u64> {
        &self.open
    }

    pub(crate) fn now(&self) -> f64 {
        self.now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fence_passes_when_no_step_up_to_it_is_open() {
        let mut steps = Steps::new(false);
        assert!(steps.passed(steps.stamp()));
        let first = steps.begin(0.0).unwrap();
        let second = steps.begin(0.0).unwrap();
        let stamp = steps.stamp();
        steps.complete(second).unwrap();
        assert!(!steps.passed(stamp), "step 1 is still open");
        steps.complete(first).unwrap();
        assert!(steps.passed(stamp));
        assert_eq!(steps.complete(first).unwrap_err().code(), "step_not_open");
    }

    #[test]
    fn one_stream_needs_fences_only_while_copies_run() {
        let mut steps = Steps::new(true);
        let first = steps.begin(0.0).unwrap();
        assert_eq!(steps.stamp(), 0);
        let second = steps.begin(0.0).unwrap();
        steps.fence_copies(second);
        assert!(!steps.passed(steps.stamp()));
        steps.complete(second).unwrap();
        assert!(!steps.passed(steps.stamp()), "the oldest step decides");
        steps.complete(first).unwrap();
        steps.begin(0.0).unwrap();
        assert!(steps.passed(steps.stamp()));
    }

    #[test]
    fn the_clock_does_not_go_backwards() {
        let mut steps = Steps::new(false);
        steps.begin(2.0).unwrap();
        let error = steps.begin(1.0).unwrap_err();
        assert_eq!(
            error.to_string(),
            "now is 1, must be a finite number not below 2"
        );
        assert!(steps.begin(f64::INFINITY).is_err());
        assert!(Steps::new(false).begin(f64::NEG_INFINITY).is_err());
        let error = steps.begin(f64::NAN).unwrap_err();
        assert_eq!(
            error.to_string(),
            "now is NaN, must be a finite number not below 2"
        );
        assert_eq!(steps.begin(2.0), Ok(2));
    }
}
