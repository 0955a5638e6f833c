//! Splits Rust source into comments, strings, words and marks: as much of the grammar as the rules need.

/// What a token is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TokenKind {
    /// `///`, `//!` and their block forms.
    DocComment,
    /// Every other comment.
    Comment,
    /// The content of a string literal of any form.
    Str,
    /// An identifier, a keyword or a number.
    Word,
    /// Any other character, one at a time. Character literals are left out.
    Mark,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SourceToken<'a> {
    pub(super) kind: TokenKind,
    pub(super) text: &'a str,
    /// Of its first character, counted from 1.
    pub(super) line: usize,
}

impl SourceToken<'_> {
    pub(super) fn is_mark(&self, mark: &str) -> bool {
        self.kind == TokenKind::Mark && self.text == mark
    }

    pub(super) fn is_identifier(&self, word: &str) -> bool {
        self.kind == TokenKind::Word && self.text == word
    }

    pub(super) fn is_code(&self) -> bool {
        matches!(self.kind, TokenKind::Str | TokenKind::Word | TokenKind::Mark)
    }
}

/// All tokens of a file, in order.
pub(super) fn tokens(text: &str) -> Vec<SourceToken<'_>> {
    let mut scanner = Scanner { text, at: 0, line: 1, tokens: Vec::new() };
    while scanner.step() {}
    scanner.tokens
}

struct Scanner<'a> {
    text: &'a str,
    at: usize,
    line: usize,
    tokens: Vec<SourceToken<'a>>,
}

impl<'a> Scanner<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    /// Takes the next `len` bytes as a token, without `trim` bytes at either end.
    fn take(&mut self, kind: Option<TokenKind>, len: usize, trim: (usize, usize)) {
        let whole = &self.rest()[..len];
        if let Some(kind) = kind {
            self.tokens.push(SourceToken { kind, text: &whole[trim.0..len - trim.1], line: self.line });
        }
        self.line += whole.matches('\n').count();
        self.at += len;
    }

    fn step(&mut self) -> bool {
        let rest = self.rest();
        let Some(first) = rest.chars().next() else { return false };
        if rest.starts_with("//") {
            let is_doc = rest.starts_with("//!") || rest.starts_with("///") && !rest.starts_with("////");
            let kind = if is_doc { TokenKind::DocComment } else { TokenKind::Comment };
            self.take(Some(kind), rest.find('\n').unwrap_or(rest.len()), (0, 0));
        } else if rest.starts_with("/*") {
            let is_doc = rest.starts_with("/**") || rest.starts_with("/*!");
            let kind = if is_doc { TokenKind::DocComment } else { TokenKind::Comment };
            self.take(Some(kind), block_comment(rest), (0, 0));
        } else if first == '"' {
            let len = quoted(rest);
            self.take(Some(TokenKind::Str), len, (1, 1.min(len - 1)));
        } else if first == '\'' {
            self.take(None, char_literal(rest).unwrap_or(1), (0, 0));
        } else if first.is_alphanumeric() || first == '_' {
            self.identifier(rest);
        } else {
            let kind = (!first.is_whitespace()).then_some(TokenKind::Mark);
            self.take(kind, first.len_utf8(), (0, 0));
        }
        true
    }

    fn identifier(&mut self, rest: &'a str) {
        let len = rest.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(rest.len());
        let after = &rest[len..];
        let word = &rest[..len];
        let hashes = after.len() - after.trim_start_matches('#').len();
        if matches!(word, "r" | "br" | "cr") && after[hashes..].starts_with('"') {
            let open = len + hashes + 1;
            let close = format!("\"{}", "#".repeat(hashes));
            let end = rest[open..].find(&close).map_or(rest.len(), |at| open + at + close.len());
            self.take(Some(TokenKind::Str), end, (open, close.len()));
        } else if matches!(word, "b" | "c") && after.starts_with('"') {
            let end = len + quoted(after);
            self.take(Some(TokenKind::Str), end, (len + 1, 1));
        } else {
            self.take(Some(TokenKind::Word), len, (0, 0));
        }
    }
}

/// The length of a comment that may contain others.
fn block_comment(rest: &str) -> usize {
    let (mut depth, mut at) = (0_usize, 0);
    while at < rest.len() {
        match &rest.as_bytes()[at..] {
            [b'/', b'*', ..] => (depth, at) = (depth + 1, at + 2),
            [b'*', b'/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    // A comment that does not end is cut off at the end of the file, which is a boundary of characters.
    at
}

/// The length of a string with its quotes.
fn quoted(rest: &str) -> usize {
    let mut is_escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    rest.len()
}

/// The length of a character literal, or `None` if the quote begins a lifetime.
fn char_literal(rest: &str) -> Option<usize> {
    let mut chars = rest.char_indices().skip(1);
    let (_, first) = chars.next()?;
    if first == '\\' {
        // The escaped character may be a quote.
        chars.next()?;
        return chars.find(|(_, c)| *c == '\'').map(|(at, _)| at + 1);
    }
    chars.next().filter(|(_, c)| *c == '\'').map(|(at, _)| at + 1)
}

/// A named item, as far as the rules need to know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SourceItem<'a> {
    /// The keyword that introduces it: `fn`, `struct`, `mod` and so on.
    pub(super) keyword: &'a str,
    pub(super) name: &'a str,
    pub(super) line: usize,
    pub(super) is_test: bool,
    pub(super) within: Within,
}

/// What the nearest block around an item belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Within {
    /// The file, or a module in it.
    Module,
    /// An `impl` or a trait.
    Impl,
    /// A function, at any depth.
    Function,
    /// Anything else, such as a macro.
    Other,
}

const ITEMS: [&str; 9] = ["fn", "struct", "enum", "union", "trait", "type", "mod", "const", "static"];

/// The items that a file defines, in order.
pub(super) fn items<'a>(tokens: &[SourceToken<'a>]) -> Vec<SourceItem<'a>> {
    let code: Vec<SourceToken<'a>> = tokens.iter().filter(|token| token.is_code()).copied().collect();
    let mut items = Vec::new();
    let mut blocks: Vec<Within> = Vec::new();
    // What the next brace opens.
    let mut opens = Within::Other;
    let mut is_test = false;
    // Parentheses and brackets that are open: a keyword among them introduces no item.
    let mut depth = 0_usize;
    let mut at = 0;
    while let Some(token) = code.get(at) {
        let within = blocks.last().copied().unwrap_or(Within::Module);
        if token.is_mark("#") && code.get(at + 1).is_some_and(|next| next.is_mark("[")) {
            let end = attribute_end(&code, at + 1);
            is_test |= is_test_attribute(&code[at + 2..end]);
            at = end;
        } else if token.is_mark("{") {
            let nested = if within == Within::Function { Within::Function } else { opens };
            blocks.push(nested);
            opens = Within::Other;
        } else if token.is_mark("}") {
            blocks.pop();
        } else if token.is_mark("(") || token.is_mark("[") {
            depth += 1;
        } else if token.is_mark(")") || token.is_mark("]") {
            depth = depth.saturating_sub(1);
        } else if token.is_mark(";") && depth == 0 {
            opens = Within::Other;
        } else if token.is_identifier("impl") && depth == 0 && opens == Within::Other {
            opens = Within::Impl;
        } else if token.kind == TokenKind::Word && ITEMS.contains(&token.text) && depth == 0 {
            let name = code.get(at + 1).filter(|next| next.kind == TokenKind::Word);
            // `const fn` and `const _: () = …` name no constant.
            if let Some(name) = name.filter(|name| !matches!(name.text, "fn" | "_" | "mut" | "unsafe")) {
                let SourceToken { line, text: keyword, .. } = *token;
                items.push(SourceItem {
                    keyword,
                    name: name.text,
                    line,
                    is_test: is_test && keyword == "fn",
                    within,
                });
                is_test = false;
                opens = match keyword {
                    "fn" => Within::Function,
                    "mod" => Within::Module,
                    "trait" => Within::Impl,
                    _ => Within::Other,
                };
                at += 1;
            }
        }
        at += 1;
    }
    items
}

/// The index of the bracket that ends an attribute.
fn attribute_end(code: &[SourceToken<'_>], open: usize) -> usize {
    let mut depth = 0_usize;
    for (at, token) in code.iter().enumerate().skip(open) {
        if token.is_mark("[") {
            depth += 1;
        } else if token.is_mark("]") {
            depth -= 1;
            if depth == 0 {
                return at;
            }
        }
    }
    code.len()
}

/// `test`, `tokio::test`, `tokio::test(…)`.
fn is_test_attribute(inside: &[SourceToken<'_>]) -> bool {
    let path_end = inside.iter().position(|token| token.is_mark("(")).unwrap_or(inside.len());
    inside[..path_end].last().is_some_and(|token| token.is_identifier("test"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_kind(text: &str, kind: TokenKind) -> Vec<(usize, &str)> {
        let found = tokens(text).into_iter().filter(|token| token.kind == kind);
        found.map(|token| (token.line, token.text)).collect()
    }

    #[test]
    fn comments_and_strings_are_separate_from_code() {
        let text =
            "//! Doc.\nlet a = \"x // \\\" y\"; // why\n/* a /* b */\n c */ let b = r#\"raw \"quote\" \"#;\n";
        assert_eq!(of_kind(text, TokenKind::DocComment), [(1, "//! Doc.")]);
        assert_eq!(of_kind(text, TokenKind::Comment), [(2, "// why"), (3, "/* a /* b */\n c */")]);
        assert_eq!(of_kind(text, TokenKind::Str), [(2, "x // \\\" y"), (4, "raw \"quote\" ")]);
        let words: Vec<&str> = of_kind(text, TokenKind::Word).into_iter().map(|(_, word)| word).collect();
        assert_eq!(words, ["let", "a", "let", "b"]);
    }

    #[test]
    fn quotes_of_characters_and_lifetimes_open_no_string() {
        let text = "fn f<'a>(x: &'a str) { let c = ['\"', '\\'', '\\n', 'ä']; g(b\"bytes\", c\"text\") }";
        let strings: Vec<&str> = of_kind(text, TokenKind::Str).into_iter().map(|(_, text)| text).collect();
        assert_eq!(strings, ["bytes", "text"]);
    }

    #[test]
    fn truncated_text_is_read_to_its_end() {
        for text in ["\"open", "/* open", "r#\"open", "'", "'\\", "#[", "\""] {
            let _ = items(&tokens(text));
        }
    }

    #[test]
    fn items_record_block_and_test_attribute() {
        let text = "struct A;\nimpl B for A { type C = u8; fn d() { enum E { F } } }\n\
            mod g { #[derive(Debug)] struct H { x: [u8; 2] } }\n\
            #[tokio::test(start_paused = true)]\nasync fn i_works() {}\n#[test]\nfn j() {}\nconst fn k() {}\n\
            fn l(f: fn([u8; 2]) -> u8) -> impl Fn() { struct Inner; }\nstruct M;\n#[cfg(test)]\nfn n() {}\n";
        let tokens = tokens(text);
        let found: Vec<_> = items(&tokens)
            .into_iter()
            .map(|item| (item.keyword, item.name, item.is_test, item.within))
            .collect();
        assert_eq!(
            found,
            [
                ("struct", "A", false, Within::Module),
                ("type", "C", false, Within::Impl),
                ("fn", "d", false, Within::Impl),
                ("enum", "E", false, Within::Function),
                ("mod", "g", false, Within::Module),
                ("struct", "H", false, Within::Module),
                ("fn", "i_works", true, Within::Module),
                ("fn", "j", true, Within::Module),
                ("fn", "k", false, Within::Module),
                ("fn", "l", false, Within::Module),
                ("struct", "Inner", false, Within::Function),
                ("struct", "M", false, Within::Module),
                ("fn", "n", false, Within::Module),
            ]
        );
    }
}
