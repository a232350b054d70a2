-- The third step: marks, a chunk at a time, in their order; one that comes again is not counted again.
--
-- KEYS  meta  users      ARGV  epoch  chunk  units  then user  mark …
-- Answers 1, or 0 if the load is not ours any more.
local meta = redis.call('HMGET', KEYS[1], 'epoch', 'loading', 'filled')
if meta[1] ~= ARGV[1] or not meta[2] or not meta[3] then return 0 end
local filled, chunk = tonumber(meta[3]), tonumber(ARGV[2])
if filled > chunk then return 1 end
if filled < chunk then return 0 end
redis.call('HSET', KEYS[2], unpack(ARGV, 4))
redis.call('HINCRBY', KEYS[1], 'units', ARGV[3])
local time = redis.call('TIME')
redis.call('HSET', KEYS[1], 'filled', chunk + 1,
  'loading', string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000)))
return 1
