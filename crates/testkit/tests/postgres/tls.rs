//! TLS: whom the client trusts, and whom the server does.

use crate::support::User;
use lockkeeper::Keeper;
use servers::{POSTGRES_TLS, Running};

testkit::tests! {
    [POSTGRES_TLS] =>
        both_sides_show_certificates_and_check_them,
        a_certificate_for_another_host_is_refused;
}

/// The URL of the user `app`, with these files of the server's folder as options.
fn url(server: &Running, mode: &str, files: &[(&str, &str)]) -> String {
    let mut url = format!("{}?sslmode={mode}", server.url().replace("postgres@", "app@"));
    for (option, file) in files {
        url += &format!("&{option}={}", server.folder().join(file).display());
    }
    url
}

const CLIENT: [(&str, &str); 2] = [("tls_cert", "client.pem"), ("tls_key", "client.key")];

async fn refusal(url: &str) -> String {
    let e = Keeper::connect(url).await.expect_err("refused");
    let mut said = e.to_string();
    let mut source = std::error::Error::source(&e);
    while let Some(e) = source {
        said += &format!(": {e}");
        source = e.source();
    }
    said
}

async fn both_sides_show_certificates_and_check_them(server: Running) {
    let owner = User::of(&server).await;
    owner.run("CREATE ROLE app LOGIN SUPERUSER").await;
    for mode in ["require", "verify-ca", "verify-full"] {
        let files = [("tls_ca", "ca.pem"), CLIENT[0], CLIENT[1]];
        let keeper = Keeper::connect(&url(&server, mode, &files)).await.expect("both trust");
        keeper.lock("a").await.expect("free").release().await.expect("released");
        let secret = "SELECT count(*) FROM pg_stat_ssl s JOIN pg_stat_activity a USING (pid) \
                      WHERE a.usename = 'app' AND s.ssl AND s.client_dn LIKE '%client%'";
        assert!(owner.number(secret).await >= 1);
        keeper.close().await;
    }

    let stranger = [("tls_ca", "stranger.pem"), CLIENT[0], CLIENT[1]];
    let e = refusal(&url(&server, "require", &stranger)).await;
    assert!(e.contains("certificate"), "a server of another authority: {e}");

    let e = refusal(&url(&server, "require", &[("tls_ca", "ca.pem")])).await;
    assert!(e.contains("certificate"), "a client without a certificate: {e}");

    let e = refusal(&url(&server, "disable", &[])).await;
    assert!(e.contains("no pg_hba.conf entry"), "a client without TLS: {e}");
}

/// The certificate is the server's, but not for the name by which it was called.
async fn a_certificate_for_another_host_is_refused(server: Running) {
    let there = url(&server, "verify-full", &[("tls_ca", "ca.pem")]);
    let e = refusal(&there.replace("app@127.0.0.1", "postgres@127.0.0.2")).await;
    assert!(e.contains("certificate") || e.contains("cannot connect"), "{e}");
    let named = there.replace("app@127.0.0.1", "postgres@localhost");
    Keeper::connect(&named).await.expect("the certificate has this name too").close().await;
}
