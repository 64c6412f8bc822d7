//! Certificates for a server and a client that trust each other.

use std::fs;
use std::path::Path;

use anyhow::Result;
use rcgen::{
    BasicConstraints, Certificate, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair,
};

/// Writes `ca.pem`; `server.pem` and `server.key` for 127.0.0.1; `client.pem` and `client.key`; and
/// `stranger.pem`, another authority, which has signed nothing.
pub(crate) fn write(folder: &Path) -> Result<()> {
    let (certificate, issuer) = authority("the authority of a test")?;
    fs::write(folder.join("ca.pem"), certificate.pem())?;
    fs::write(folder.join("stranger.pem"), authority("a stranger")?.0.pem())?;
    for name in ["server", "client"] {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(["127.0.0.1".to_owned(), "localhost".to_owned()])?;
        params.distinguished_name.push(DnType::CommonName, name);
        // etcd's server is also a client of itself.
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let certificate = params.signed_by(&key, &issuer)?;
        fs::write(folder.join(format!("{name}.pem")), certificate.pem())?;
        fs::write(folder.join(format!("{name}.key")), key.serialize_pem())?;
    }
    Ok(())
}

/// Each has a name of its own: one who is named like its issuer counts as self-signed.
fn authority(name: &str) -> Result<(Certificate, Issuer<'static, KeyPair>)> {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate()?;
    let certificate = params.self_signed(&key)?;
    Ok((certificate, Issuer::new(params, key)))
}
