-- The second step of a move: add the units here, once per move.
--
-- KEYS  meta  stock  given  changed      ARGV  epoch  move  item  units  now_ms
-- Answers 1 if they are here (now or before), 0 if the item has another epoch by now, -1 if this
-- shard is still being loaded: then the units wait where they are noted.
local meta = redis.call('HMGET', KEYS[1], 'epoch', 'loading')
if meta[1] ~= ARGV[1] then return 0 end
if meta[2] then return -1 end
if redis.call('HEXISTS', KEYS[3], ARGV[2]) == 0 then
  redis.call('HSET', KEYS[3], ARGV[2], ARGV[3] .. ':' .. ARGV[5])
  redis.call('INCRBY', KEYS[2], ARGV[4])
  redis.call('HINCRBY', KEYS[1], 'seq', 1)
  redis.call('ZADD', KEYS[#KEYS], redis.call('ZINCRBY', KEYS[#KEYS], 1, ''), string.match(KEYS[1], '%d+$'))
end
return 1
