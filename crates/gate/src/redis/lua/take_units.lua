-- The first step of a move: take half of what is here (at least `wanted`, if there is as much) and
-- note where it goes. A move that is noted already answers what it took; one that is settled is over.
--
-- KEYS  meta  stock  moves  settled  changed      ARGV  epoch  move  item  to  wanted  now_ms
-- Answers the units taken; 0 if there are none; -1 if the shard is being loaded or has another
-- epoch, so that nobody can say.
local meta = redis.call('HMGET', KEYS[1], 'epoch', 'loading')
if meta[1] ~= ARGV[1] or meta[2] then return -1 end
local noted = redis.call('HGET', KEYS[3], ARGV[2])
if noted then return tonumber(string.match(noted, '^%d+:%d+:%d+:(%d+)')) end
if redis.call('HEXISTS', KEYS[4], ARGV[2]) == 1 then return 0 end
local left = tonumber(redis.call('GET', KEYS[2]) or '0')
if left <= 0 then return 0 end
local units = math.min(left, math.max(math.ceil(left / 2), tonumber(ARGV[5])))
redis.call('HSET', KEYS[3], ARGV[2],
  ARGV[3] .. ':' .. ARGV[1] .. ':' .. ARGV[4] .. ':' .. units .. ':' .. ARGV[6])
redis.call('SET', KEYS[2], left - units)
redis.call('HINCRBY', KEYS[1], 'seq', 1)
redis.call('ZADD', KEYS[#KEYS], redis.call('ZINCRBY', KEYS[#KEYS], 1, ''), string.match(KEYS[1], '%d+$'))
return units
