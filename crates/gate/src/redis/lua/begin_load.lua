-- The first step of a load: take the shard over for this epoch, frozen, with all that it holds. From
-- here on nobody is admitted, nothing comes back or is adjusted, and who loads under an earlier epoch
-- is refused; only then does the loader read what it will load. A later epoch, and an item that has
-- ended, are left alone. Again under the same epoch it says that the loader is still at it.
--
-- KEYS  meta  changed      ARGV  epoch
-- Answers 1, or 0 if this epoch is loaded or a later one is here.
local meta = redis.call('HMGET', KEYS[1], 'epoch', 'loading', 'shut')
if meta[3] == '3' then return 0 end
local here, mine = tonumber(meta[1] or '-1'), tonumber(ARGV[1])
if here > mine or (here == mine and not meta[2]) then return 0 end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
for _, field in ipairs({'opens', 'closes', 'limit', 'units'}) do
  redis.call('HSETNX', KEYS[1], field, 0)
end
if here < mine then
  -- What a loader before us has begun, and what an operator wished before: the ledger knows it.
  redis.call('HDEL', KEYS[1], 'wiped', 'filled', 'stocked', 'wish')
  redis.call('HINCRBY', KEYS[1], 'seq', 1)
end
redis.call('HSET', KEYS[1], 'epoch', ARGV[1], 'shut', 2, 'loading', string.format('%.0f', now))
redis.call('ZADD', KEYS[#KEYS], redis.call('ZINCRBY', KEYS[#KEYS], 1, ''), string.match(KEYS[1], '%d+$'))
return 1
