-- Change the units left by `delta`, once: `had` is what the caller knows of this number here.
--
-- KEYS  meta  stock  adjusts  changed
-- ARGV  adjust_no  delta  mode  had (empty: nothing)
-- mode: `refuse` to go below zero, `take` no more than there is, `force`
-- Answers {'D', seq, applied} | {'R'} the amount here is another one than the caller knows of, be it
-- from a call whose answer was lost | {'S', left} short | {'N'} not here.
-- An amount of zero is a number that the load contained: nothing is left to do for it.
local meta = redis.call('HMGET', KEYS[1], 'epoch', 'shut', 'seq', 'loading')
if not meta[1] then return {'N'} end
if meta[2] == '2' or meta[4] then return redis.error_reply('FROZEN the item is being loaded') end
local has = redis.call('HGET', KEYS[3], ARGV[1])
if (has or '') ~= ARGV[4] then return {'R'} end
local left, delta = tonumber(redis.call('GET', KEYS[2]) or '0'), tonumber(ARGV[2])
if delta < 0 and left + delta < 0 then
  if ARGV[3] == 'refuse' then return {'S', left} end
  if ARGV[3] == 'take' then delta = -math.max(left, 0) end
end
if delta == 0 then return {'D', tonumber(meta[3]), 0} end
local now = tonumber(has or '0') + delta
-- What was taken back altogether never was: a zero would say that the load contained it.
if now == 0 then redis.call('HDEL', KEYS[3], ARGV[1]) else redis.call('HSET', KEYS[3], ARGV[1], now) end
redis.call('SET', KEYS[2], left + delta)
redis.call('ZADD', KEYS[#KEYS], redis.call('ZINCRBY', KEYS[#KEYS], 1, ''), string.match(KEYS[1], '%d+$'))
return {'D', redis.call('HINCRBY', KEYS[1], 'seq', 1), delta}
