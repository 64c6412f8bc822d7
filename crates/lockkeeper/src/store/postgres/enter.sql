-- Enters a line, with the values of enter_first.sql. One round trip: o_fence if the line was free, else o_else, the
-- answer of lk_enter; and o_life, the session's end. No row: there is no such session, and the store takes back a
-- ticket that may have been granted.
--
-- The statement reads the session before it waits for the line, and compares its end afterwards. A session that was
-- ended meanwhile leaves a dead ticket, as one that ends a moment later does.
--
-- Setting the statement up costs most, part by part: a join or a subquery more is a few microseconds.
WITH fast AS ({first})
SELECT f.o_fence,
       CASE WHEN f.o_fence IS NULL
            THEN lockkeeper.lk_enter($1, $2, $3, $4, $5, $6, $7, $8, {most}) END AS o_else,
       lockkeeper.lk_micros(greatest(s.expires, 'epoch')) AS o_life
  FROM lockkeeper.lk_session AS s LEFT JOIN fast AS f ON s.expires > clock_timestamp()
 WHERE s.id = $3
