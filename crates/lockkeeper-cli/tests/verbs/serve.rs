//! `lockkeeper serve`: a process that serves, and its end.

use super::answer;
use crate::support::{Place, Running};
use nix::sys::signal::Signal;
use serde_json::Value;
use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    os::unix::net::UnixDatagram,
};

/// Starts it on a free port: the process, what it says of itself, and its address.
fn serve(place: &Place, arguments: &[&str]) -> (Running, Value, String) {
    let arguments = [&["serve", "--json", "--listen", "127.0.0.1:0"], arguments].concat();
    let mut running = Running::start(&mut place.lockkeeper(&arguments));
    let said: Value = serde_json::from_str(&running.line()).expect("one line of JSON");
    let address = said["listen"][0].as_str().expect("an address").to_owned();
    (running, said, address)
}

/// The answer to one request on a connection of its own.
fn ask(address: &str, request: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("it listens");
    let request = format!("{request} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("it reads");
    let mut said = String::new();
    stream.read_to_string(&mut said).expect("it answers");
    said
}

#[test]
fn a_signal_stops_the_service_and_its_locks_stay() {
    let place = Place::new();
    let (mut running, said, address) = serve(&place, &[]);
    assert_eq!(said["console"], format!("http://{address}/"));
    assert_eq!(said["event"], "serving");
    let taken = ask(&address, "POST /v1/locks/nightly");
    assert!(taken.starts_with("HTTP/1.1 200") && taken.contains("\"held\":true"), "{taken}");
    let fence = taken.split("\"fence_text\":\"").nth(1).and_then(|rest| rest.split('"').next());
    running.signal(Signal::SIGTERM);
    assert_eq!(running.code(), 0);
    let shown = place.stdout(&["show", "nightly", "--json"]);
    assert!(shown.contains(fence.expect("a fence")), "{shown}");
}

#[test]
fn systemd_is_told_when_the_service_is_ready_and_when_it_stops() {
    let place = Place::new();
    let (path, mut text) = (place.path("notify"), [0; 64]);
    let systemd = UnixDatagram::bind(&path).unwrap();
    let mut command = place.lockkeeper(&["serve", "--quiet", "--listen", "127.0.0.1:0"]);
    let mut running = Running::start(command.env("NOTIFY_SOCKET", &path));
    let mut told = || {
        let length = systemd.recv(&mut text).unwrap();
        String::from_utf8_lossy(&text[..length]).into_owned()
    };
    assert_eq!(told(), "READY=1");
    running.signal(Signal::SIGINT);
    assert_eq!(told(), "STOPPING=1");
    assert_eq!(running.code(), 0);
}

#[test]
fn the_settings_come_from_flags_the_environment_and_a_file() {
    let place = Place::new();
    let file = place.path("settings.toml");
    fs::write(&file, "[serve]\nlisten = [\"unix:/file.sock\"]\nsocket_mode = \"660\"\n").unwrap();
    let mut command = place.lockkeeper(&["serve", "--print-config", "--config"]);
    let output = command.arg(&file).env("LOCKKEEPER_SERVE_LISTEN", "127.0.0.1:1").output().unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(printed.contains("listen = [\"127.0.0.1:1\"]"), "{printed}");
    assert!(printed.contains("socket_mode = \"660\""), "{printed}");
}

#[test]
fn other_machines_are_not_let_in_without_authentication() {
    let place = Place::new();
    let (_, said) = answer(&place, &["serve", "--listen", "0.0.0.0:0"], 78);
    assert!(said.contains("--insecure") && said.contains("0.0.0.0:0"), "{said}");
    let (_, said) = answer(&place, &["serve", "--listen", "somewhere"], 64);
    assert!(said.contains("127.0.0.1:7601"), "{said}");
}
