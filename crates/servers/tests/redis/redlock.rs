//! Five servers that know nothing of each other.

use anyhow::Result;
use servers::REDLOCK;

use crate::support::{ask, connect, hear, names, say_in_vain, stop_and_look_around};

pub(crate) fn parts() -> Result<()> {
    let mut five = REDLOCK.start()?;
    let ports = five.ports().to_vec();
    let [a, b, c, d, e] = ports[..] else { panic!("not five ports: {ports:?}") };
    let hosts = [a, b, c, d, e].map(|port| format!("127.0.0.1:{port}"));
    assert_eq!(five.url(), format!("redlock://{}", hosts.join(",")));
    assert_eq!(names(&mut five), ["redis-1", "redis-2", "redis-3", "redis-4", "redis-5"]);

    for (port, colour) in ports.iter().zip(["red", "green", "blue", "pink", "grey"]) {
        assert_eq!(ask(*port, &format!("SET colour {colour}"))?, "+OK\r\n");
    }
    assert_eq!(ask(a, "GET colour")?, "$3\r\nred\r\n", "each has its own");

    let mut client = connect(b)?;
    five.nodes()[1].freeze()?;
    say_in_vain(&mut client, "GET colour")?;
    five.nodes()[3].kill()?;
    assert!(connect(d).is_err());
    assert_eq!(five.pids().len(), 4);
    assert_eq!(ask(c, "GET colour")?, "$4\r\nblue\r\n", "the others go on");

    five.nodes()[1].thaw()?;
    assert_eq!(hear(&mut client)?, "$5\r\ngreen\r\n");
    five.nodes()[3].restart()?;
    assert_eq!(ask(d, "GET colour")?, "$-1\r\n", "nothing is kept on disk");
    assert_eq!(ask(e, "GET colour")?, "$4\r\ngrey\r\n");

    stop_and_look_around(five)
}
