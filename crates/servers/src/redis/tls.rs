//! A Redis server that refuses clients without a certificate and a password, and lets none do more
//! than locks need.

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use super::{REDIS, server};
use crate::{
    certificates,
    recipe::{Recipe, Sandbox},
};

/// What a user of lockkeeper must be allowed to do, for the prefix `lk`, as `docs/redis.md` says.
pub const REDIS_RIGHTS: &str = "~lk:* &lk:* \
    +info +config|get +script|load +evalsha +subscribe +publish +time +type +exists +del \
    +hget +hmget +hset +hincrby +hdel +hlen +hexists +hgetall \
    +zadd +zincrby +zrem +zscore +zrange +zrangebyscore +zremrangebylex +zrank +zcard +zlexcount";

/// The password of the user `lockkeeper`.
const PASSWORD: &str = "open sesame";

/// A Redis server with TLS, which asks for a client's certificate, and a user of few rights.
///
/// Its only node is `redis`. The first port speaks TLS. The second does not, and has no password: it
/// is there to look after the server. Below the sandbox's folder, `redis` holds `ca.pem`; `client.pem`
/// and `client.key`; and `stranger.pem`, another authority, which has signed nothing.
pub const REDIS_TLS: Recipe = Recipe {
    name: "redis-tls",
    ports: 2,
    processes: |sandbox| {
        let settings = format!(
            "tls-port {}\ntls-ca-cert-file ca.pem\ntls-cert-file server.pem\n\
             tls-key-file server.key\ntls-auth-clients yes\n\
             user lockkeeper on \">{PASSWORD}\" {REDIS_RIGHTS}\n",
            sandbox.ports[0]
        );
        let process = server(sandbox, "redis", sandbox.ports[1], &settings)?;
        certificates::write(&sandbox.folder.join("redis"))?;
        Ok(vec![process])
    },
    url,
    ..REDIS
};

fn url(sandbox: &Sandbox) -> String {
    let encoded = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
    let file = |name: &str| encoded(&sandbox.folder.join("redis").join(name).to_string_lossy());
    format!(
        "rediss://lockkeeper:{}@127.0.0.1:{}?tls_ca={}&tls_cert={}&tls_key={}",
        encoded(PASSWORD),
        sandbox.ports[0],
        file("ca.pem"),
        file("client.pem"),
        file("client.key"),
    )
}
