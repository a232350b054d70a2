-- The first step of a move: take half of what is here (at least `wanted`, if there is as much) and
-- note where it goes. A move that is noted already answers what it took.
--
-- KEYS  meta  stock  moves      ARGV  epoch  move  item  to  wanted  now_ms
-- Answers the units taken; 0 if there are none.
if redis.call('HGET', KEYS[1], 'epoch') ~= ARGV[1] then return 0 end
if redis.call('HEXISTS', KEYS[1], 'loading') == 1 then return 0 end
local noted = redis.call('HGET', KEYS[3], ARGV[2])
if noted then return tonumber(string.match(noted, '^%d+:%d+:%d+:(%d+)')) end
local left = tonumber(redis.call('GET', KEYS[2]) or '0')
if left <= 0 then return 0 end
local units = math.min(left, math.max(math.ceil(left / 2), tonumber(ARGV[5])))
redis.call('HSET', KEYS[3], ARGV[2],
  ARGV[3] .. ':' .. ARGV[1] .. ':' .. ARGV[4] .. ':' .. units .. ':' .. ARGV[6])
redis.call('SET', KEYS[2], left - units)
redis.call('HINCRBY', KEYS[1], 'seq', 1)
return units
