use super::*;
use std::collections::{BTreeMap, BTreeSet};

/// All files together, in bytes.
const SIZE_MAX: usize = 150_000;

fn text(file: &File) -> &'static str {
    std::str::from_utf8(file.bytes).unwrap()
}

fn scripts() -> impl Iterator<Item = &'static File> {
    FILES.iter().filter(|file| file.name.ends_with(".js"))
}

/// What stands between `open` and the next `close`, wherever `open` is found.
fn between<'a>(text: &'a str, open: &'a str, close: char) -> impl Iterator<Item = &'a str> {
    text.match_indices(open).filter_map(move |(at, _)| {
        let rest = &text[at + open.len()..];
        rest.find(close).map(|end| &rest[..end])
    })
}

#[test]
fn the_whole_page_is_under_150_kb() {
    let size: usize = FILES.iter().map(|file| file.bytes.len()).sum();
    assert!(size < SIZE_MAX, "{size} bytes");
}

#[test]
fn every_file_of_the_folder_is_embedded() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("console");
    let on_disk: BTreeSet<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    let embedded: BTreeSet<String> = FILES.iter().map(|file| file.name.to_owned()).collect();
    assert_eq!(on_disk, embedded);
}

#[test]
fn every_file_that_is_referred_to_exists() {
    let page = text(find(PAGE).unwrap());
    let of_page: Vec<&str> = between(page, "\"console/", '"').collect();
    assert!(of_page.contains(&"app.js") && of_page.contains(&"style.css"), "{of_page:?}");
    let imports = scripts().flat_map(|file| between(text(file), "from \"./", '"'));
    for name in of_page.iter().copied().chain(imports) {
        assert!(find(name).is_some(), "{name}");
    }
}

#[test]
fn no_file_is_fetched_from_another_place() {
    for file in FILES.iter() {
        let text = text(file).replace("http://www.w3.org/2000/svg", "");
        for address in ["http://", "https://", "@import", "\"//"] {
            assert!(!text.contains(address), "{}: {address}", file.name);
        }
        assert!(!file.name.ends_with(".css") || !text.contains("url("), "{}", file.name);
    }
}

#[test]
fn nothing_in_the_page_needs_a_weaker_policy() {
    let page = text(find(PAGE).unwrap());
    assert!(
        !page.contains(" style=") && !page.contains("<style") && !page.contains(" on"),
        "{page}"
    );
    for tag in between(page, "<script", '>') {
        assert!(tag.contains(" src="), "<script{tag}>");
    }
    for file in scripts() {
        let forbidden = [
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "DOMParser",
            "eval(",
            "new Function",
            "setAttribute(\"style\"",
            "style: ",
            "cssText",
            "document.cookie",
            "setTimeout(\"",
        ];
        for word in forbidden {
            assert!(!text(file).contains(word), "{}: {word}", file.name);
        }
    }
}

/// The lines of `i18n.js` that are `key: ["English", "Chinese"],`.
fn words() -> BTreeMap<&'static str, [String; 2]> {
    let table = text(find("i18n.js").unwrap());
    let table = table.split("export const WORDS = {\n").nth(1).unwrap();
    let table = table.split("\n};").next().unwrap();
    let lines = table.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with("//"));
    let mut words = BTreeMap::new();
    for line in lines {
        let (key, pair) = line.trim_end_matches(',').split_once(": ").unwrap();
        let pair: [String; 2] =
            serde_json::from_str(pair).unwrap_or_else(|e| panic!("{line}: {e}"));
        assert!(words.insert(key, pair).is_none(), "{key} is there twice");
    }
    words
}

#[test]
fn every_word_is_there_in_english_and_chinese_with_the_same_places() {
    let words = words();
    assert!(words.len() > 100, "{}", words.len());
    for (key, [english, chinese]) in &words {
        assert!(!english.trim().is_empty() && !chinese.trim().is_empty(), "{key}");
        for place in ["{0}", "{1}", "{2}"] {
            assert_eq!(english.contains(place), chinese.contains(place), "{key}: {place}");
        }
        let is_han = |c: char| ('\u{4e00}'..='\u{9fff}').contains(&c);
        // These read the same in both languages, and the button for a language is written in that language.
        let same = ["pid", "process", "cell_version", "language", "x_of_y"].contains(key);
        assert!(same || chinese.chars().any(is_han), "{key} is not translated: {chinese}");
        assert!(*key == "language" || !english.chars().any(is_han), "{key}: {english}");
    }
}

#[test]
fn every_key_that_is_used_has_words_and_every_word_is_used() {
    let words = words();
    let mut all = text(find(PAGE).unwrap()).to_owned();
    for file in scripts().filter(|file| file.name != "i18n.js") {
        for key in between(text(file), "t(\"", '"') {
            let before = text(file).find(&format!("t(\"{key}\"")).unwrap();
            let is_call =
                !text(file)[..before].ends_with(|c: char| c.is_alphanumeric() || c == '.');
            let known = words.contains_key(key) || key == "s_" || key == "e_";
            assert!(!is_call || known, "{}: t({key:?})", file.name);
        }
        all.push_str(text(file));
    }
    for key in between(text(find(PAGE).unwrap()), "data-t=\"", '"') {
        assert!(words.contains_key(key), "data-t={key:?}");
    }
    for key in words.keys() {
        let is_part = key.starts_with("s_") || key.starts_with("e_");
        assert!(is_part || all.contains(&format!("\"{key}\"")), "{key} is not used");
    }
}

#[test]
fn every_state_and_every_kind_of_event_has_words_and_a_glyph() {
    use lockkeeper::store::http::wire::EventKind;
    let (words, dom) = (words(), text(find("dom.js").unwrap()));
    for kind in EventKind::ALL {
        let word = kind.word();
        assert!(words.contains_key(format!("e_{word}").as_str()), "{word}");
        let drawn =
            dom.contains(&format!("\n  {word}: ")) || dom.contains(&format!("\nGLYPHS.{word} = "));
        assert!(drawn, "{word} has no glyph");
    }
    for state in ["held", "waiting", "expiring", "jeopardy", "foreign", "free"] {
        assert!(words.contains_key(format!("s_{state}").as_str()), "{state}");
        assert!(dom.contains(&format!("\n  {state}: ")), "{state} has no glyph");
    }
}

fn answer(name: &str, if_none_match: Option<&str>) -> Response {
    let mut headers = HeaderMap::new();
    if let Some(tags) = if_none_match {
        headers.insert(header::IF_NONE_MATCH, HeaderValue::from_str(tags).unwrap());
    }
    find(name).unwrap().answer(&headers)
}

#[test]
fn every_file_says_its_type_its_tag_and_the_policy() {
    for file in FILES.iter() {
        let response = answer(file.name, None);
        let headers = response.headers();
        assert_eq!(response.status(), StatusCode::OK, "{}", file.name);
        assert_ne!(headers[header::CONTENT_TYPE], "application/octet-stream", "{}", file.name);
        assert_eq!(headers[header::CONTENT_SECURITY_POLICY], POLICY, "{}", file.name);
        assert_eq!(headers[header::CACHE_CONTROL], "no-cache", "{}", file.name);
        assert_eq!(headers[header::X_CONTENT_TYPE_OPTIONS], "nosniff", "{}", file.name);
        assert_eq!(headers[header::REFERRER_POLICY], "no-referrer", "{}", file.name);
        let tag = headers[header::ETAG].to_str().unwrap();
        assert!(tag.len() == 34 && tag.starts_with('"') && tag.ends_with('"'), "{tag}");
    }
    let tags: BTreeSet<_> = FILES.iter().map(|file| file.tag.as_bytes()).collect();
    assert_eq!(tags.len(), FILES.len());
}

#[test]
fn a_browser_that_has_the_file_is_not_sent_it_again() {
    let tag = find("app.js").unwrap().tag.to_str().unwrap();
    for tags in [tag, "*", &format!("W/{tag}"), &format!("\"other\", {tag}")] {
        let response = answer("app.js", Some(tags));
        assert_eq!(response.status(), StatusCode::NOT_MODIFIED, "{tags}");
        assert_eq!(response.headers()[header::ETAG], tag);
    }
    assert_eq!(answer("app.js", Some("\"other\"")).status(), StatusCode::OK);
}
