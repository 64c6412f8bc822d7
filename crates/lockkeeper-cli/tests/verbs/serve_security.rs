//! `lockkeeper serve --tokens`: who may come in.

use crate::{
    answer,
    support::{Place, Running, eventually},
};
use nix::sys::signal::Signal;
use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
};

/// The status of `GET /v1/store` with this token.
fn status(address: &str, token: &str) -> u16 {
    let mut stream = TcpStream::connect(address).unwrap();
    let request = format!(
        "GET /v1/store HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nAuthorization: Bearer {token}\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut said = String::new();
    stream.read_to_string(&mut said).unwrap();
    said.split(' ').nth(1).unwrap().parse().unwrap()
}

/// Starts the service, and gives its address.
fn serve(place: &Place, flags: &[&str]) -> (Running, String) {
    let listen = ["--json", "serve", "--listen", "127.0.0.1:0"];
    let mut service = place.start(&[&listen, flags].concat());
    let line: serde_json::Value = serde_json::from_str(&service.line()).unwrap();
    (service, line["listen"][0].as_str().unwrap().to_owned())
}

#[test]
fn a_token_is_good_from_the_line_in_the_file_until_it_is_removed() {
    let place = Place::new();
    let path = place.path("tokens");
    let file = path.to_str().unwrap();
    let draw = |name| {
        let new = ["token", "new", name, "--scope", "read", "--into", file];
        answer(&place, &new, 0).0.trim().to_owned()
    };
    let first = draw("first");
    let audit = place.path("audit");
    let flags = ["--tokens", file, "--audit-log", audit.to_str().unwrap()];
    let (mut service, address) = serve(&place, &flags);
    assert_eq!([status(&address, &first), status(&address, "lkt_wrong")], [200, 401]);
    let second = draw("second");
    service.signal(Signal::SIGHUP);
    eventually(|| status(&address, &second) == 200);
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.lines().nth(1).unwrap()).unwrap();
    eventually(|| status(&address, &first) == 401);
    assert_eq!(status(&address, &second), 200);
    let audit = fs::read_to_string(&audit).unwrap();
    assert!(
        audit.contains(r#""event":"reloaded""#) && audit.contains(r#""event":"refused""#),
        "{audit}"
    );
    assert!(!audit.contains(&first) && !audit.contains(&second));
    service.signal(Signal::SIGTERM);
    assert_eq!(service.code(), 0);
}

#[test]
fn other_machines_are_not_let_in_without_authentication() {
    let place = Place::new();
    let (_, said) = answer(&place, &["serve", "--listen", "0.0.0.0:0"], 78);
    assert!(said.contains("--tokens FILE") && said.contains("--insecure"), "{said}");
    let (_, said) = answer(&place, &["serve", "--tls-cert", "a"], 78);
    assert!(said.contains("--tls-key"), "{said}");
    let (_, said) = answer(&place, &["serve", "--tokens", "/nowhere/tokens"], 78);
    assert!(said.contains("/nowhere/tokens cannot be read"), "{said}");
}
