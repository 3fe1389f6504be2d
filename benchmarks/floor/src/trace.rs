//! W6: the requests of a trace, each as counts of blocks.

use std::collections::VecDeque;
use std::fs;
use std::time::Instant;

use crate::memory::{BLOCK, Memory, Random, Run};

/// Pages of the pool and requests that run at once, as in the workload.
const PAGES: usize = 131_072;
const WINDOW: usize = 16;

/// One request: blocks of its prompt, how many of them hit, blocks of its output.
struct Request {
    prompt: usize,
    hit: usize,
    output: usize,
}

/// Nanoseconds of the whole replay.
pub fn replay(path: &str) -> Result<f64, String> {
    let text = fs::read_to_string(path).map_err(|error| error.to_string())?;
    let requests: Vec<Request> = text
        .lines()
        .enumerate()
        .map(|(at, line)| parse(line).ok_or_else(|| format!("line {}: {line:?}", at + 1)))
        .collect::<Result<_, _>>()?;
    Ok(crate::median(|| once(&requests)))
}

fn parse(line: &str) -> Option<Request> {
    let mut numbers = line.split_whitespace().map(str::parse);
    let request = Request {
        prompt: numbers.next()?.ok()?,
        hit: numbers.next()?.ok()?,
        output: numbers.next()?.ok()?,
    };
    (numbers.next().is_none() && request.hit <= request.prompt && request.prompt < PAGES / 2)
        .then_some(request)
}

/// Hit blocks are compared with the records of the youngest runs, the others are published, the oldest
/// runs make room. Output pages go into a row and back when the request leaves the window.
fn once(requests: &[Request]) -> f64 {
    let longest = requests.iter().map(|request| request.prompt).max();
    let prompt = Random::new(6).tokens(longest.unwrap_or(0) * BLOCK);
    let mut memory = Memory::new(PAGES, false);
    let mut runs: VecDeque<Run> = VecDeque::new();
    let mut live: VecDeque<Vec<u32>> = VecDeque::new();
    let mut same = 0;
    let start = Instant::now();
    for request in requests {
        let mut row = Vec::with_capacity(request.prompt + request.output);
        let mut left = request.hit;
        for run in runs.iter().rev() {
            if left == 0 {
                break;
            }
            let part = left.min(run.records.len());
            same += memory.equal_blocks(run, &prompt, part);
            row.extend_from_slice(&run.pages[..part]);
            left -= part;
        }
        let fresh = request.prompt - request.hit;
        while memory.free() < fresh + request.output {
            let Some(oldest) = runs.pop_front() else {
                break;
            };
            memory.give_back(&oldest);
        }
        runs.push_back(memory.publish(&prompt[..fresh * BLOCK]));
        let mut output = Vec::new();
        memory.take_pages(request.output, &mut output);
        live.push_back(output);
        if live.len() > WINDOW
            && let Some(mut done) = live.pop_front()
        {
            memory.give_pages(&mut done);
        }
    }
    let elapsed = start.elapsed().as_nanos() as f64;
    std::hint::black_box(same);
    elapsed
}
