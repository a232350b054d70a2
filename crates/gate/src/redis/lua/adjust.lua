-- Change the units left by `delta`, once per number.
--
-- KEYS  meta  stock  adjusts
-- ARGV  adjust_no  delta  mode: `refuse` to go below zero, `take` no more than there is, `force`
-- Answers {'D', seq, applied} | {'R'} repeated | {'S', left} short | {'N'} not here.
local meta = redis.call('HMGET', KEYS[1], 'epoch', 'shut')
if not meta[1] then return {'N'} end
if meta[2] == '2' then return redis.error_reply('FROZEN the item is being loaded') end
if redis.call('HEXISTS', KEYS[3], ARGV[1]) == 1 then return {'R'} end
local left, delta = tonumber(redis.call('GET', KEYS[2]) or '0'), tonumber(ARGV[2])
if delta < 0 and left + delta < 0 then
  if ARGV[3] == 'refuse' then return {'S', left} end
  if ARGV[3] == 'take' then delta = -math.max(left, 0) end
end
redis.call('HSET', KEYS[3], ARGV[1], delta)
redis.call('SET', KEYS[2], left + delta)
return {'D', redis.call('HINCRBY', KEYS[1], 'seq', 1), delta}
