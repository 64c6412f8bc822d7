//! Rust source without its comments and literals.
//!
//! The rules look for words in code. A comment may mention a forbidden call, and the rules
//! themselves must be able to spell it in a string.

/// The source with blanks in place of comments, strings and characters, line by line as before.
pub(super) fn code_only(source: &str) -> String {
    let mut code = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(next) = rest.chars().next() {
        let follows_word = code.ends_with(is_word);
        if let Some(length) = prose_length(rest, follows_word) {
            let (prose, after) = rest.split_at(length);
            code.extend(prose.chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
            rest = after;
        } else {
            code.push(next);
            rest = &rest[next.len_utf8()..];
        }
    }
    code
}

pub(super) fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The length of the comment or literal that begins here, if one does.
fn prose_length(rest: &str, follows_word: bool) -> Option<usize> {
    if rest.starts_with("//") {
        return Some(rest.find('\n').unwrap_or(rest.len()));
    }
    if rest.starts_with("/*") {
        return Some(block_comment(rest));
    }
    if let Some(string) = rest.strip_prefix('"') {
        return Some(1 + quoted(string, '"'));
    }
    if rest.starts_with('\'') {
        return character(rest);
    }
    if follows_word { None } else { raw_string(rest) }
}

/// Block comments nest.
fn block_comment(rest: &str) -> usize {
    let mut depth = 0;
    let mut at = 0;
    while at < rest.len() {
        let here = &rest[at..];
        if here.starts_with("/*") {
            depth += 1;
            at += 2;
        } else if here.starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += here.chars().next().map_or(1, char::len_utf8);
        }
    }
    rest.len()
}

/// The length up to and with the closing quote.
fn quoted(rest: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in rest.char_indices() {
        if c == quote && !escaped {
            return at + c.len_utf8();
        }
        escaped = c == '\\' && !escaped;
    }
    rest.len()
}

/// `'a'` and `'\n'` are characters; `'a` is a lifetime.
fn character(rest: &str) -> Option<usize> {
    let inside = &rest[1..];
    let first = inside.chars().next()?;
    let is_character = first == '\\' || inside[first.len_utf8()..].starts_with('\'');
    is_character.then(|| 1 + quoted(inside, '\''))
}

/// `r"…"`, `br#"…"#` and so on; not the raw identifier `r#type`.
fn raw_string(rest: &str) -> Option<usize> {
    let prefix = ["r", "br", "cr"].into_iter().find(|prefix| rest.starts_with(prefix))?;
    let after = &rest[prefix.len()..];
    let hashes = after.len() - after.trim_start_matches('#').len();
    let body = after[hashes..].strip_prefix('"')?;
    let close = format!("\"{}", "#".repeat(hashes));
    let start = rest.len() - body.len();
    Some(body.find(&close).map_or(rest.len(), |at| start + at + close.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn squeezed(source: &str) -> String {
        code_only(source).split_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn comments_are_blanked_even_when_nested() {
        assert_eq!(squeezed("a /* x /* y */ z */ b // c\nd"), "a b d");
        assert_eq!(squeezed("/// doc\nfn f() {}"), "fn f() {}");
    }

    #[test]
    fn strings_are_blanked_with_their_escapes() {
        assert_eq!(squeezed(r#"f("a \" b", c)"#), "f( , c)");
        assert_eq!(squeezed(r#"f(b"x\\", c) // "d"#), "f(b , c)");
        assert_eq!(squeezed(r##"f(r#"a " b"#, br"\", c)"##), "f( , , c)");
    }

    #[test]
    fn a_quote_may_be_a_character_or_a_lifetime() {
        assert_eq!(squeezed("f::<'a>('\"', b)"), "f::<'a>( , b)");
        assert_eq!(squeezed(r"f('\'', '\\', b)"), "f( , , b)");
        assert_eq!(squeezed("&'static str"), "&'static str");
    }

    #[test]
    fn raw_identifiers_and_words_that_end_in_r_are_code() {
        assert_eq!(squeezed("r#type + number"), "r#type + number");
        assert_eq!(squeezed("str\"x\""), "str");
    }

    #[test]
    fn lines_stay_where_they_are() {
        let source = "a\n/* b\nc */ \"d\ne\" f\n";
        assert_eq!(code_only(source).lines().count(), source.lines().count());
        assert!(code_only(source).lines().nth(3).is_some_and(|line| line.ends_with('f')));
    }

    #[test]
    fn unfinished_prose_ends_with_the_file() {
        for source in ["/* a", "\"a", "r#\"a\"", "'\\", "'"] {
            assert_eq!(code_only(source).len(), source.len());
        }
    }
}
