//! One input becomes another: by bytes, by pieces, and by what the text means.

use tenure_core::rng;

use crate::dictionary::{HOSTILE_NAMES, NUMBERS, PIECES};

/// How long an input becomes at most: a little above what any decoder here still reads (512 KiB).
const LEN_MAX: usize = 600 * 1024;

/// How many changes one input gets at most. Few, so that most of what is tried still gets past the first check.
const CHANGES_MAX: usize = 6;

/// Changes inputs; the seed decides how.
#[derive(Clone, Debug)]
pub struct Mutator {
    state: u64,
}

impl Mutator {
    /// Changes that are the same for the same seed.
    pub fn new(seed: u64) -> Mutator {
        Mutator { state: seed }
    }

    /// A number below `end`, which is not 0.
    pub fn below(&mut self, end: usize) -> usize {
        let end = u64::try_from(end.max(1)).expect("an address fits into 64 bits");
        usize::try_from(rng::next(&mut self.state) % end).expect("it is below a size")
    }

    /// Another input made of this one, and perhaps of a second.
    pub fn change(&mut self, input: &[u8], other: &[u8]) -> Vec<u8> {
        let mut bytes = input.to_vec();
        for _ in 0..=self.below(CHANGES_MAX) {
            self.change_once(&mut bytes, other);
        }
        bytes.truncate(LEN_MAX);
        bytes
    }

    fn change_once(&mut self, bytes: &mut Vec<u8>, other: &[u8]) {
        match self.below(16) {
            0 => self.flip(bytes),
            1 => self.set(bytes),
            2 => self.cut(bytes),
            3 => bytes.truncate(self.below(bytes.len() + 1)),
            4 => self.repeat(bytes),
            5 => self.splice(bytes, other),
            6 => self.weave(bytes, other),
            7 => self.swap(bytes),
            8 | 9 => self.replace_number(bytes),
            10 | 11 => self.replace_text(bytes),
            12 => self.replace_value(bytes),
            13 => self.add_field(bytes),
            14 => {
                let piece = PIECES[self.below(PIECES.len())];
                self.insert(bytes, piece.as_bytes());
            }
            _ => {
                let name = HOSTILE_NAMES[self.below(HOSTILE_NAMES.len())];
                self.insert(bytes, name.as_bytes());
            }
        }
    }

    fn flip(&mut self, bytes: &mut [u8]) {
        if !bytes.is_empty() {
            let at = self.below(bytes.len());
            bytes[at] ^= 1 << self.below(8);
        }
    }

    fn set(&mut self, bytes: &mut [u8]) {
        const BYTES: &[u8] = b"\0\x01\x1b\x7f\x80\xc0\xff /%\"\\{}[]:,=-+.09aAfFzZ\n";
        if !bytes.is_empty() {
            let at = self.below(bytes.len());
            bytes[at] = BYTES[self.below(BYTES.len())];
        }
    }

    /// Somewhere in the bytes, from and to.
    fn span(&mut self, len: usize) -> (usize, usize) {
        let from = self.below(len + 1);
        let rest = len - from;
        // Short ones mostly: a long one is the work of `truncate`.
        let longest = if self.below(4) == 0 { rest } else { rest.min(8) };
        (from, from + self.below(longest + 1))
    }

    fn cut(&mut self, bytes: &mut Vec<u8>) {
        let (from, to) = self.span(bytes.len());
        bytes.drain(from..to);
    }

    /// A span again, a few times, or as often as it takes to reach a limit.
    fn repeat(&mut self, bytes: &mut Vec<u8>) {
        let (from, to) = self.span(bytes.len());
        let span = bytes[from..to].to_vec();
        let times = match self.below(400) {
            0 => (LEN_MAX / span.len().max(1)).min(LEN_MAX),
            1..=8 => 300,
            _ => 1 + self.below(4),
        };
        let room = LEN_MAX.saturating_sub(bytes.len());
        let more: Vec<u8> = span.iter().copied().cycle().take((span.len() * times).min(room)).collect();
        bytes.splice(to..to, more);
    }

    /// The beginning of the one, the end of the other.
    fn splice(&mut self, bytes: &mut Vec<u8>, other: &[u8]) {
        let (keep, from) = (self.below(bytes.len() + 1), self.below(other.len() + 1));
        bytes.truncate(keep);
        bytes.extend_from_slice(&other[from..]);
    }

    /// A part of the other in the middle of the one.
    fn weave(&mut self, bytes: &mut Vec<u8>, other: &[u8]) {
        let (from, to) = self.span(other.len());
        self.insert(bytes, &other[from..to]);
    }

    fn swap(&mut self, bytes: &mut [u8]) {
        if bytes.len() > 1 {
            let (a, b) = (self.below(bytes.len()), self.below(bytes.len()));
            bytes.swap(a, b);
        }
    }

    fn insert(&mut self, bytes: &mut Vec<u8>, piece: &[u8]) {
        let at = self.below(bytes.len() + 1);
        bytes.splice(at..at, piece.iter().copied());
    }

    /// One of the runs of digits becomes a number at some limit.
    fn replace_number(&mut self, bytes: &mut Vec<u8>) {
        let number = NUMBERS[self.below(NUMBERS.len())];
        let runs = runs(bytes, u8::is_ascii_digit);
        match runs.get(self.below(runs.len())) {
            Some(&(from, to)) => drop(bytes.splice(from..to, number.bytes())),
            None => self.insert(bytes, number.as_bytes()),
        }
    }

    /// One of the texts between quotes becomes a hostile name, as it is or as JSON writes it.
    fn replace_text(&mut self, bytes: &mut Vec<u8>) {
        let name = HOSTILE_NAMES[self.below(HOSTILE_NAMES.len())];
        let text = if self.below(3) == 0 { name.to_owned() } else { name.escape_default().to_string() };
        let text = text.replace("\\u{", "\\u00").replace('}', "");
        let texts = texts(bytes);
        match texts.get(self.below(texts.len())) {
            Some(&(from, to)) => drop(bytes.splice(from..to, text.bytes())),
            None => {
                let words = runs(bytes, u8::is_ascii_alphanumeric);
                if let Some(&(from, to)) = words.get(self.below(words.len())) {
                    bytes.splice(from..to, name.bytes());
                }
            }
        }
    }

    /// The value after one of the colons becomes one of another kind.
    fn replace_value(&mut self, bytes: &mut Vec<u8>) {
        const VALUES: &[&str] =
            &["null", "true", "\"\"", "\"x\"", "[]", "{}", "{\"a\":1}", "[null,1]", "0.5", "-1", "1e5"];
        let starts: Vec<usize> = (0..bytes.len()).filter(|&at| bytes[at] == b':').map(|at| at + 1).collect();
        if starts.is_empty() {
            return;
        }
        let from = starts[self.below(starts.len())];
        let len = bytes[from..].iter().position(|byte| matches!(byte, b',' | b'}')).unwrap_or(0);
        let value = VALUES[self.below(VALUES.len())];
        bytes.splice(from..from + len, value.bytes());
    }

    /// A field more, known or not, perhaps a second time.
    fn add_field(&mut self, bytes: &mut Vec<u8>) {
        let braces: Vec<usize> = (0..bytes.len()).filter(|&at| bytes[at] == b'{').map(|at| at + 1).collect();
        if braces.is_empty() {
            return;
        }
        let at = braces[self.below(braces.len())];
        let texts = texts(bytes);
        let name = match texts.get(self.below(texts.len() * 2)) {
            Some(&(from, to)) => bytes[from..to].to_vec(),
            None => b"zone".to_vec(),
        };
        let value = match self.below(3) {
            0 => "\"x\"",
            1 => "null",
            _ => NUMBERS[self.below(NUMBERS.len())],
        };
        let is_alone = bytes.get(at) == Some(&b'}');
        let field = [b"\"".as_slice(), &name, b"\":", value.as_bytes(), if is_alone { b"" } else { b"," }];
        bytes.splice(at..at, field.concat());
    }
}

/// Where runs of such bytes begin and end.
fn runs(bytes: &[u8], is_part: impl Fn(&u8) -> bool) -> Vec<(usize, usize)> {
    let mut runs = Vec::new();
    let mut from = None;
    for (at, byte) in bytes.iter().enumerate().take(4_096) {
        match (is_part(byte), from) {
            (true, None) => from = Some(at),
            (false, Some(start)) => {
                runs.push((start, at));
                from = None;
            }
            (true, Some(_)) | (false, None) => {}
        }
    }
    runs.extend(from.map(|start| (start, bytes.len().min(4_096))));
    runs
}

/// Where texts between quotes begin and end, without the quotes.
fn texts(bytes: &[u8]) -> Vec<(usize, usize)> {
    let quotes: Vec<usize> = (0..bytes.len().min(4_096)).filter(|&at| bytes[at] == b'"').collect();
    quotes.chunks_exact(2).map(|pair| (pair[0] + 1, pair[1])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seed_decides_mutations() {
        let made = |seed: u64| {
            let mut mutator = Mutator::new(seed);
            (0..50).map(|_| mutator.change(br#"{"v":1,"node":"web-1"}"#, b"[1,2]")).collect::<Vec<_>>()
        };
        assert_eq!(made(1), made(1));
        assert_ne!(made(1), made(2));
    }

    #[test]
    fn mutation_handles_empty_and_bounds_growth() {
        for input in [&b""[..], b"x", b"{}", b":", b"\""] {
            let mut mutator = Mutator::new(7);
            let mut bytes = input.to_vec();
            for _ in 0..2_000 {
                bytes = mutator.change(&bytes, b"");
                assert!(bytes.len() <= LEN_MAX);
            }
        }
    }
}
