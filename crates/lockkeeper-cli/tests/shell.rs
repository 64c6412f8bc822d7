//! `-c`: a text for the shell in place of a command.

mod support;

use support::Place;

#[test]
fn a_text_is_run_by_the_shell_under_the_lock() {
    let place = Place::new();
    let pipeline = "echo $LOCKKEEPER_NAME | tr a b";
    for arguments in [
        ["run", "a", "-c", pipeline],
        ["run", "-c", pipeline, "a"],
        ["run", "a", "--command", pipeline],
    ] {
        assert_eq!(place.stdout(&arguments), "b\n", "{arguments:?}");
    }
    assert_eq!(place.stdout(&["run", "a", "-c", "echo $0 $#"]), "/bin/sh 0\n");
    place.assert(&["run", "a", "-c", "exit 7"]).code(7);
    place.assert(&["run", "a", "-c", ""]).success();
    place.assert(&["run", "a", "-c", "kill -TERM $$"]).code(128 + 15);
    let mut other_shell = place.lockkeeper(&["run", "a", "-c", "echo $0"]);
    let said = other_shell.env("SHELL", "/bin/false").output().unwrap().stdout;
    assert_eq!(said, b"/bin/sh\n", "the same shell for every user");
}

#[test]
fn a_text_and_a_command_are_not_run_together() {
    let place = Place::new();
    for arguments in [
        &["run", "a", "-c", "echo ran", "--", "echo", "ran"][..],
        &["run", "a", "-c", "echo ran", "more"],
        &["run", "a", "-c"],
    ] {
        place.assert(arguments).code(64).stdout("");
    }
    let output = place.assert(&["run", "-c", "echo ran"]).code(64).get_output().clone();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("<NAME>"), "{said}");
}

#[test]
fn a_shell_that_holds_is_shown_as_the_holder() {
    let place = Place::new();
    let mut holder = place.start(&["run", "a", "-c", "echo in; read _ || :"]);
    assert_eq!(holder.line(), "in");
    assert_eq!(place.show("a")["holders"][0]["owner"]["program"], "sh");
    assert!(holder.end().success());
}
