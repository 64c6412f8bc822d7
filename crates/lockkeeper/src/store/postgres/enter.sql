-- Enters a line, with the values of first.sql. One round trip: o_fence if the line was free, else what lk_enter
-- says; and until when the session lives. No row at all: there is no such session, and the ticket has to
-- be taken back.
--
-- The session is read before the wait for the line and its end compared behind it; one that
-- was ended meanwhile leaves a ticket that is dead, as one that ends a moment later does.
--
-- What costs here is to set a statement up, part by part: a join or a subquery more is a few microseconds.
WITH fast AS ({first})
SELECT f.o_fence,
       CASE WHEN f.o_fence IS NULL
            THEN lockkeeper.lk_enter($1, $2, $3, $4, $5, $6, $7, $8, {most}) END AS o_else,
       lockkeeper.lk_micros(greatest(s.expires, 'epoch')) AS o_life
  FROM lockkeeper.lk_session AS s LEFT JOIN fast AS f ON s.expires > clock_timestamp()
 WHERE s.id = $3
