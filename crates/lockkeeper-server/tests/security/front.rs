//! Names, origins, headers, and the refusal to listen beyond loopback.

use crate::support::{Folder, Server, principals, token};
use http::Method;
use lockkeeper::store::{AnyStore, memory::Memory};
use lockkeeper_server::{Listener, Options, Security, SecurityOptions, Service, serve};
use std::sync::Arc;

#[tokio::test]
async fn every_answer_has_the_headers_that_bind_a_browser() {
    let server = Server::start(SecurityOptions::default()).await;
    for (method, path, status) in [
        (Method::GET, "/livez", 200),
        (Method::GET, "/v1/store", 200),
        (Method::GET, "/nowhere", 404),
        (Method::PUT, "/livez", 405),
        (Method::DELETE, "/v1/locks/a/tickets/x", 400),
    ] {
        let answer = server.ask(method, path, None, "").await;
        assert_eq!(answer.status, status, "{path}");
        let header = |name: &str| answer.headers[name].to_str().unwrap().to_owned();
        assert!(header("content-security-policy").starts_with("default-src 'none'; "), "{path}");
        assert_eq!(header("referrer-policy"), "no-referrer");
        assert_eq!(header("x-content-type-options"), "nosniff");
        assert!(!answer.headers.contains_key("set-cookie"), "{path}");
        assert!(!answer.headers.contains_key("access-control-allow-origin"), "{path}");
    }
}

#[tokio::test]
async fn a_name_that_was_not_said_and_a_page_of_another_origin_are_refused() {
    let mut options = SecurityOptions::default();
    options.hosts = vec!["locks.example.org".to_owned()];
    let server = Server::start(options).await;
    let host = async |name: &str, path: &str| {
        let stream = tokio::net::TcpStream::connect(server.address).await.unwrap();
        crate::support::send(stream, Method::GET, path, &[("host", name)], "").await.status
    };
    assert_eq!(host("locks.example.org:443", "/v1/store").await, 200);
    assert_eq!(host("evil.example:7601", "/v1/store").await, 421);
    assert_eq!(host("evil.example:7601", "/nowhere").await, 421);
    let origin = async |origin: &str| {
        let headers = [("origin", origin), ("content-type", "text/plain")];
        server.send(Method::POST, "/v1/locks/a", &headers, "{}").await
    };
    let refused = origin("http://evil.example").await;
    assert_eq!((refused.status, refused.kind().await.as_deref()), (403, Some("origin")));
    let own = format!("http://{}", server.address);
    assert_ne!(origin(&own).await.kind().await.as_deref(), Some("origin"));
}

#[tokio::test]
async fn beyond_loopback_the_service_does_not_listen_without_authentication() {
    let folder = Folder::new();
    let tokens = folder.write("tokens", &token("ci", &["read"]).line);
    let mut insecure = SecurityOptions::default();
    insecure.insecure = true;
    for (options, is_allowed) in
        [(SecurityOptions::default(), false), (insecure, true), (principals(tokens), true)]
    {
        let security = Arc::new(Security::open(options).unwrap());
        let everywhere = "0.0.0.0:0".parse().unwrap();
        assert_eq!(security.allow(&everywhere).is_ok(), is_allowed);
        assert!(security.warning(&everywhere).is_some(), "no TLS, or no authentication");
        assert!(security.allow(&"127.0.0.1:0".parse().unwrap()).is_ok());
    }
    let service = Service::new(AnyStore::new(Memory::new()), Options::default());
    let listener = Listener::bind(&"0.0.0.0:0".parse().unwrap(), 0o600).await.unwrap();
    let refused = serve(service, vec![listener]).await.unwrap_err().to_string();
    assert!(refused.contains("--tokens FILE") && refused.contains("--insecure"), "{refused}");
}
