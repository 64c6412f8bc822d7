//! TLS and certificates of clients.

use crate::support::{Answer, Folder, Server, eventually, principals, send, set_mode, token};
use http::Method;
use lockkeeper_server::{SecurityOptions, TlsFiles};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
};
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _},
};
use std::{io, net::SocketAddr, sync::Arc};
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client::TlsStream};

/// An authority that signs certificates for 127.0.0.1.
struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self { pem, issuer: Issuer::new(params, key) }
    }

    /// A certificate and its key, as PEM.
    fn sign(&self, name: &str) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        (certificate.pem(), key.serialize_pem())
    }

    /// Writes the server's certificate and key.
    fn write(&self, folder: &Folder) -> TlsFiles {
        let (cert, key) = self.sign("server");
        TlsFiles::new(folder.write("server.pem", &cert), folder.write("server.key", &key))
    }

    /// Connects, trusting this authority, with a certificate if one is given.
    async fn connect(
        &self,
        to: SocketAddr,
        certificate: Option<&(String, String)>,
    ) -> io::Result<TlsStream<TcpStream>> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.pem.as_bytes()).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let config = match certificate {
            None => config.with_no_client_auth(),
            Some((cert, key)) => {
                let cert = CertificateDer::from_pem_slice(cert.as_bytes()).unwrap();
                let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
                config.with_client_auth_cert(vec![cert], key).unwrap()
            }
        };
        let name = ServerName::try_from("127.0.0.1").unwrap();
        let stream = TcpStream::connect(to).await?;
        TlsConnector::from(Arc::new(config)).connect(name, stream).await
    }

    async fn ask(
        &self,
        server: &Server,
        certificate: Option<&(String, String)>,
        token: Option<&str>,
    ) -> Answer {
        let stream = self.connect(server.address, certificate).await.unwrap();
        let host = server.address.to_string();
        let authorization = token.map(|token| format!("Bearer {token}"));
        let mut headers = vec![("host", host.as_str())];
        headers.extend(authorization.as_deref().map(|value| ("authorization", value)));
        send(stream, Method::GET, "/v1/store", &headers, "").await
    }
}

#[tokio::test]
async fn a_new_certificate_is_taken_up_and_a_broken_one_is_not() {
    let folder = Folder::new();
    let [old, new] = [Authority::new("old"), Authority::new("new")];
    let mut options = SecurityOptions::default();
    options.tls = Some(old.write(&folder));
    let server = Server::start(options).await;
    assert_eq!(old.ask(&server, None, None).await.status, 200);
    assert!(new.connect(server.address, None).await.is_err());
    let kept = old.connect(server.address, None).await.unwrap();
    folder.write("server.key", "nonsense");
    server.security.refresh(true);
    assert_eq!(old.ask(&server, None, None).await.status, 200);
    let _files = new.write(&folder);
    eventually("the new certificate is shown", async || {
        new.connect(server.address, None).await.is_ok()
    })
    .await;
    assert!(old.connect(server.address, None).await.is_err());
    let host = server.address.to_string();
    let answer = send(kept, Method::GET, "/livez", &[("host", &host)], "").await;
    assert_eq!(answer.status, 200, "connections that are open stay");
}

#[tokio::test]
async fn a_certificate_is_the_principal_that_the_file_says() {
    let folder = Folder::new();
    let [authority, stranger] = [Authority::new("ours"), Authority::new("stranger")];
    let web = token("web", &["read"]);
    let lines = format!("ci cert$build%20farm read lock:jobs/*\n{}\n", web.line);
    let mut options = principals(folder.write("tokens", &lines));
    let mut tls = authority.write(&folder);
    tls.client_ca = Some(folder.write("client_ca.pem", &authority.pem));
    options.tls = Some(tls);
    let server = Server::start(options).await;
    let ask = async |certificate, token| authority.ask(&server, certificate, token).await.status;
    let [farm, other] = [authority.sign("build farm"), authority.sign("other")];
    assert_eq!(ask(Some(&farm), None).await, 200);
    assert_eq!(ask(Some(&other), None).await, 401, "no line has this name");
    assert_eq!(ask(None, None).await, 401);
    assert_eq!(ask(None, Some(&web.token)).await, 200);
    assert_eq!(ask(Some(&farm), Some("lkt_wrong")).await, 401, "a wrong token is not made good");
    // With TLS 1.3 a client hears of its refused certificate with its first read.
    let forged = stranger.sign("build farm");
    let refused = async {
        let stream = authority.connect(server.address, Some(&forged)).await?;
        let (mut reader, _writer) = tokio::io::split(stream);
        tokio::io::AsyncReadExt::read_u8(&mut reader).await
    };
    assert!(refused.await.is_err());
    folder.write("tokens", &web.line);
    eventually("the certificate's line is gone", async || ask(Some(&farm), None).await == 401)
        .await;
}

#[tokio::test]
async fn a_key_that_others_may_read_and_certificates_without_principals_are_refused() {
    let folder = Folder::new();
    let authority = Authority::new("ours");
    let open = |tls: TlsFiles| {
        let mut options = SecurityOptions::default();
        options.tls = Some(tls);
        lockkeeper_server::Security::open(options).unwrap_err().to_string()
    };
    let mut tls = authority.write(&folder);
    tls.client_ca = Some(folder.write("client_ca.pem", &authority.pem));
    let said = open(tls.clone());
    assert!(said.contains("--tokens"), "{said}");
    set_mode(&tls.key, 0o644);
    let said = open(tls.clone());
    assert!(said.contains("chmod o-rwx"), "{said}");
    set_mode(&tls.key, 0o600);
    tls.cert = folder.write("nonsense.pem", "nonsense");
    let said = open(tls);
    assert!(said.contains("nonsense.pem has no certificate"), "{said}");
}
