//! `lockkeeper check --keys`: signatures.

use crate::{answer, hold, json, support::Place};
use lockkeeper::{Sequencer, SigningKeys};
use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    process::Command,
    time::{Duration, SystemTime},
};

const KEYS: &str = "k2 22222222222222222222222222222222\nk1 11111111111111111111111111111111\n";

/// Writes a file that this user alone may read, and gives its path.
fn secret_file(place: &Place, name: &str, text: &str) -> String {
    let path = place.path(name);
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    path.to_str().unwrap().to_owned()
}

/// As the service would sign it.
fn sign(keys: &str, plain: &str) -> String {
    let (keys, plain): (SigningKeys, Sequencer) = (keys.parse().unwrap(), plain.parse().unwrap());
    let now = SystemTime::now();
    keys.sign(&plain, now, now + Duration::from_secs(30))
}

#[test]
fn with_keys_only_what_they_have_signed_is_held() {
    let place = Place::new();
    let keys = secret_file(&place, "keys", KEYS);
    let (mut holder, plain) = hold(&place, &[], "deploy");
    let signed = sign(KEYS, &plain);
    let check = |text: &str, code| json(&place, &["check", "--keys", &keys, text], code);
    let held = check(&signed, 0);
    assert_eq!((&held["held"], &held["signed"]["key"]), (&true.into(), &"k2".into()));
    assert_eq!(held["name"], "deploy");
    let stranger = "k2 33333333333333333333333333333333";
    for (text, why) in [
        (plain.clone(), "unsigned"),
        (signed.replace("lk1.k2.", "lk1.k1."), "forged"),
        (signed.replace("lk1.k2.", "lk1.k3."), "unknown_key"),
        (sign(stranger, &plain), "forged"),
    ] {
        let refused = check(&text, 1);
        assert_eq!((&refused["why"], &refused["name"]), (&why.into(), &().into()), "{text}");
    }
    let (_, said) = answer(&place, &["check", "--keys", &keys, &signed[..signed.len() / 2]], 64);
    assert!(said.contains("lk1.KEY.PAYLOAD.SIGNATURE"), "{said}");
    let (_, said) = answer(&place, &["check", &signed], 64);
    assert!(said.contains("it is signed"), "{said}");
    assert!(holder.end().success());
    assert_eq!(check(&signed, 1)["why"], "lost", "the signature is right, and the lock is free");
}

#[test]
fn offline_the_signature_alone_is_verified_and_no_store_is_asked() {
    let place = Place::new();
    let keys = secret_file(&place, "keys", KEYS);
    let plain = format!("lk1:0000000000000007:x:5:{}:a", "0".repeat(32));
    let away = ["--store", crate::AWAY, "check", "--keys", &keys, "--offline"];
    let view = json(&place, &[&away[..], &[&sign(KEYS, &plain)]].concat(), 0);
    assert_eq!((&view["fence"], &view["held"]), (&5.into(), &().into()));
    assert_eq!(json(&place, &[&away[..], &[&plain]].concat(), 1)["why"], "unsigned");
    answer(&place, &["check", "--offline", &plain], 64);
}

#[test]
fn keys_that_others_may_read_are_not_used_and_never_shown() {
    let place = Place::new();
    let keys = secret_file(&place, "keys", KEYS);
    fs::set_permissions(&keys, fs::Permissions::from_mode(0o644)).unwrap();
    let (_, said) = answer(&place, &["check", "--keys", &keys, "lk1.k1.a.b"], 78);
    assert!(said.contains("chmod o-rwx"), "{said}");
    let broken = secret_file(&place, "broken", "k1 11111111111111111111111111111111 more");
    let (_, said) = answer(&place, &["check", "--keys", &broken, "lk1.k1.a.b"], 78);
    assert!(said.contains("line 1: ") && !said.contains("1111"), "{said}");
}

#[test]
fn the_python_in_the_documentation_verifies_what_the_service_signs() {
    let manual = include_str!("../../../../docs/http-security.md");
    let code = manual.split("```python\n").nth(1).unwrap().split("```").next().unwrap();
    let plain = |name: &str| format!("lk1:0000000000000007:x:5:{}:{name}", "0".repeat(32));
    let good = sign(KEYS, &plain("jobs/a%20b"));
    let (head, tag) = good.rsplit_once('.').unwrap();
    let other = sign(KEYS, &plain("jobs/b"));
    let forged = format!("{}.{tag}", other.rsplit_once('.').unwrap().0);
    let program = format!(
        "{code}
keys = dict(line.split() for line in {KEYS:?}.splitlines())
print(verify({good:?}, keys, 'jobs/a b'))
for bad in [{forged:?}, {other:?}, {head:?} + '.', {plain:?}, {moved:?}]:
    try: verify(bad, keys, 'jobs/a b')
    except (ValueError, KeyError): print('refused')
",
        plain = plain("jobs/a%20b"),
        moved = good.replace("lk1.k2.", "lk1.k1."),
    );
    let output = Command::new("python3").args(["-c", &program]).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(
        said.lines().collect::<Vec<_>>(),
        ["5", "refused", "refused", "refused", "refused", "refused"],
        "{errors}"
    );
}
