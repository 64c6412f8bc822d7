//! A checker of JSON Schema, as much of it as the files in `docs/schema` use. It is stricter than the
//! standard: a keyword that it does not know is a mistake in the schema, and a field that the schema does not
//! describe is a mistake in the answer.

use serde_json::{Map, Value};
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

/// A file of `docs/schema`.
pub(crate) struct Schema {
    root: Value,
}

/// The fields that some part of a schema has described.
type Known = BTreeSet<String>;

impl Schema {
    /// Where the schemas are.
    pub(crate) fn folder() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/schema")
    }

    pub(crate) fn of(file: &str) -> Self {
        let text = fs::read_to_string(Self::folder().join(file)).expect(file);
        Self::new(serde_json::from_str(&text).expect(file))
    }

    pub(crate) fn new(root: Value) -> Self {
        Self { root }
    }

    /// What is wrong with the value; the value's path stands before it.
    pub(crate) fn check(&self, value: &Value) -> Result<(), String> {
        self.whole(&self.root, value, "").map(drop)
    }

    /// Checks a value, and that all of its fields are described.
    fn whole(&self, schema: &Value, value: &Value, at: &str) -> Result<(), String> {
        let known = self.part(schema, value, at)?;
        let fields = value.as_object().into_iter().flat_map(Map::keys);
        match fields.into_iter().find(|field| !known.contains(*field)) {
            Some(field) => Err(format!("{at}/{field} is not described")),
            None => Ok(()),
        }
    }

    fn part(&self, schema: &Value, value: &Value, at: &str) -> Result<Known, String> {
        let mut known = Known::new();
        for (keyword, rule) in schema.as_object().expect("a schema is an object") {
            known.append(&mut self.rule(keyword, rule, value, at)?);
        }
        Ok(known)
    }

    fn rule(&self, keyword: &str, rule: &Value, value: &Value, at: &str) -> Result<Known, String> {
        let holds = match keyword {
            "$schema" | "$defs" | "title" | "description" | "default" => true,
            // A field that is not described is a mistake in any case, and patterns are for those who ask.
            "additionalProperties" | "pattern" => true,
            "minLength" => value.as_str().is_none_or(|text| text.len() as u64 >= number(rule)),
            "maxLength" => value.as_str().is_none_or(|text| text.len() as u64 <= number(rule)),
            "$ref" => return self.referred(rule, value, at),
            "oneOf" => return self.one_of(rule.as_array().expect("a list"), value, at),
            "properties" => return self.fields(rule, value, at),
            "items" => {
                for (i, item) in value.as_array().into_iter().flatten().enumerate() {
                    self.whole(rule, item, &format!("{at}/{i}"))?;
                }
                true
            }
            "required" => {
                let names = rule.as_array().expect("a list").iter().filter_map(Value::as_str);
                names.into_iter().all(|name| value.get(name).is_some())
            }
            "type" => match rule {
                Value::Array(kinds) => kinds.iter().any(|kind| is_a(kind, value)),
                kind => is_a(kind, value),
            },
            "const" => rule == value,
            "enum" => rule.as_array().expect("a list").contains(value),
            "minimum" => value.as_f64().is_none_or(|n| n >= rule.as_f64().expect("a number")),
            "maximum" => value.as_f64().is_none_or(|n| n <= rule.as_f64().expect("a number")),
            "format" if rule == "date-time" => value.as_str().is_none_or(is_a_time),
            _ => panic!("the checker does not know {keyword}: {rule}"),
        };
        if holds { Ok(Known::new()) } else { Err(format!("{at}: {keyword} {rule}, not {value}")) }
    }

    /// Checks by a definition of this file, as in `#/$defs/time`, or of another one, as in
    /// `listing.json#/$defs/time`.
    fn referred(&self, reference: &Value, value: &Value, at: &str) -> Result<Known, String> {
        let parts = reference.as_str().and_then(|reference| reference.split_once('#'));
        let (file, path) = parts.expect("a file and a path");
        if !file.is_empty() {
            return Self::of(file).defined(path, value, at);
        }
        self.defined(path, value, at)
    }

    fn defined(&self, path: &str, value: &Value, at: &str) -> Result<Known, String> {
        let definition = self.root.pointer(path).unwrap_or_else(|| panic!("no {path}"));
        self.part(definition, value, at)
    }

    fn one_of(&self, schemas: &[Value], value: &Value, at: &str) -> Result<Known, String> {
        let checked: Vec<_> = schemas.iter().map(|schema| self.part(schema, value, at)).collect();
        let why: Vec<String> = checked.iter().filter_map(|one| one.clone().err()).collect();
        let mut fitting = checked.into_iter().filter_map(Result::ok);
        match (fitting.next(), fitting.next()) {
            (Some(known), None) => Ok(known),
            (None, _) => Err(format!("{at}: none fits: {}", why.join("; "))),
            _ => Err(format!("{at}: more than one fits {value}")),
        }
    }

    fn fields(&self, rule: &Value, value: &Value, at: &str) -> Result<Known, String> {
        let described = rule.as_object().expect("an object");
        for (name, schema) in described {
            if let Some(field) = value.get(name) {
                self.whole(schema, field, &format!("{at}/{name}"))?;
            }
        }
        Ok(described.keys().cloned().collect())
    }
}

fn is_a(kind: &Value, value: &Value) -> bool {
    match kind.as_str().expect("a type") {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "string" => value.is_string(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("the checker does not know the type {other}"),
    }
}

fn number(rule: &Value) -> u64 {
    rule.as_u64().expect("a whole number")
}

/// As `2026-11-19T15:07:12.123Z`.
fn is_a_time(text: &str) -> bool {
    let shape = text.chars().map(|c| if c.is_ascii_digit() { '0' } else { c });
    shape.collect::<String>() == "0000-00-00T00:00:00.000Z"
}
