-- What the store knows of itself, which comes before all else. `lk_` stands for the prefix of the URL.
--
-- Times are microseconds since 1970 of the server's clock, in UTC. Names and ids are bytes: no
-- collation takes two of them for one. Statements end with // so that this text, followed by the
-- procedures, can be given to the mariadb or mysql client as it is.
DELIMITER //

-- `layout` is 0 while the first layout is being made. `script` is the digest of the text that made it all.
CREATE TABLE IF NOT EXISTS lk_meta(
  id     TINYINT   NOT NULL PRIMARY KEY,
  layout INT       NOT NULL,
  store  BINARY(8) NOT NULL,
  script BINARY(8) NOT NULL DEFAULT ''
) ENGINE = InnoDB
//
