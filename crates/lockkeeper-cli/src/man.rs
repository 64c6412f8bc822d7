//! `lockkeeper man`: the manual, made from the description of the flags.

use crate::{cli::Cli, exit_code, failure::Failure, output::printable};
use anyhow::anyhow;
use clap::{Command, CommandFactory as _};
use clap_mangen::Man;
use std::{fs, io, path::Path};

pub(crate) const HELP: &str = "\
Examples:
  lockkeeper man | man -l -                       read the page about the command
  lockkeeper man run | man -l -                   read the page about a verb
  lockkeeper man --into /usr/local/share/man/man1 install all pages";

/// One page for stdout, or nothing, after all pages were written into a folder.
pub(crate) fn man(verb: Option<&str>, into: Option<&Path>) -> Result<String, Failure> {
    let pages = pages();
    if let Some(folder) = into {
        fs::create_dir_all(folder).map_err(|e| cannot_write(folder, &e))?;
        for (name, command) in pages {
            let path = folder.join(format!("{name}.1"));
            fs::write(&path, text(command)?).map_err(|e| cannot_write(&path, &e))?;
        }
        return Ok(String::new());
    }
    let wanted = verb.map_or("lockkeeper".to_owned(), |verb| format!("lockkeeper-{verb}"));
    match pages.iter().find(|(name, _)| *name == wanted) {
        Some((_, command)) => text(command.clone()),
        None => {
            let verb = printable(verb.unwrap_or_default());
            let verbs = pages.iter().filter_map(|(name, _)| name.strip_prefix("lockkeeper-"));
            let hint = format!("there are pages about: {}", verbs.collect::<Vec<_>>().join(", "));
            let what = anyhow!("there is no page about `{verb}`");
            Err(Failure::new(exit_code::USAGE, what).hint(hint))
        }
    }
}

fn cannot_write(path: &Path, error: &io::Error) -> Failure {
    let what = anyhow!("cannot write {}: {error}", path.display());
    Failure::new(exit_code::BUG, what).hint("name a folder that you may write to")
}

/// The pages with their names: the command's, and each verb's.
fn pages() -> Vec<(String, Command)> {
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    let verbs: Vec<Command> =
        command.get_subcommands().filter(|verb| !verb.is_hide_set()).cloned().collect();
    let named = [command].into_iter().chain(verbs).map(|command| {
        let name = command.get_display_name().unwrap_or_else(|| command.get_name());
        (name.to_owned(), command)
    });
    named.collect()
}

fn text(command: Command) -> Result<String, Failure> {
    let more = command.get_after_long_help().or(command.get_after_help());
    let more = more.map(|text| sections(&text.to_string()));
    let has_verbs = command.get_subcommands().any(|verb| !verb.is_hide_set());
    let source = concat!("lockkeeper ", env!("CARGO_PKG_VERSION"));
    let page = Man::new(command).source(source).manual("lockkeeper");
    let mut roff = Vec::new();
    let rendered = || -> io::Result<()> {
        page.render_title(&mut roff)?;
        page.render_name_section(&mut roff)?;
        page.render_synopsis_section(&mut roff)?;
        page.render_description_section(&mut roff)?;
        page.render_options_section(&mut roff)?;
        if has_verbs { page.render_subcommands_section(&mut roff) } else { Ok(()) }
    }();
    rendered.map_err(Failure::bug)?;
    Ok(String::from_utf8_lossy(&roff).into_owned() + &more.unwrap_or_default())
}

/// What stands behind the flags in a long help: lists with a heading, whose lines stay as they are, and notes.
fn sections(text: &str) -> String {
    let paragraphs = text.trim().split("\n\n").map(|paragraph| {
        let escaped = paragraph.replace('\\', "\\e").replace('-', "\\-");
        // A dot or a quote at the beginning of a line would be a request.
        let lines: Vec<String> = escaped.lines().map(|line| format!("\\&{line}")).collect();
        match paragraph.lines().next().and_then(|first| first.strip_suffix(':')) {
            Some(heading) => {
                let (heading, list) = (heading.to_uppercase(), lines[1..].join("\n"));
                format!(".SH \"{heading}\"\n.nf\n{list}\n.fi\n")
            }
            None => format!(".SH NOTES\n{}\n", lines.join("\n")),
        }
    });
    paragraphs.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_verb_has_a_page_with_examples() {
        let pages = pages();
        assert_eq!(pages.len(), Cli::command().get_subcommands().count() + 1);
        let (command, verbs) = pages.split_first().unwrap();
        assert_eq!(command.0, "lockkeeper");
        for (name, command) in verbs {
            let text = text(command.clone()).unwrap();
            assert!(text.contains(".TH") && text.contains(".SH \"EXAMPLES\""), "{name}: {text}");
        }
    }

    #[test]
    fn lists_of_a_help_keep_their_lines() {
        let text = sections("Examples:\n  a -b   c\n\nWhen\n.it is");
        let list = ".SH \"EXAMPLES\"\n.nf\n\\&  a \\-b   c\n.fi\n";
        assert_eq!(text, format!("{list}.SH NOTES\n\\&When\n\\&.it is\n"));
    }
}
