-- The first names in a range that have tickets, living or dead: from, after, before and how many, twice; how many.
(SELECT name FROM lk_gate
  WHERE fence > 0 AND name >= ? AND name > ? AND name < ? ORDER BY name LIMIT ?) UNION
(SELECT DISTINCT name FROM lk_ticket
  WHERE name >= ? AND name > ? AND name < ? ORDER BY name LIMIT ?) ORDER BY name LIMIT ?
