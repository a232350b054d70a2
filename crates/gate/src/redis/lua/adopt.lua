-- Claims of an earlier epoch that are orders now, and that the load of this epoch did not know of: a
-- failover took them from the log while a worker had them in hand. They take their units and mark
-- their buyers; whoever is marked is left alone.
--
-- KEYS  meta  stock  users  changed
-- ARGV  per claim: user  epoch  mark (24 bytes)
-- Answers {epoch, seq, units}; an empty list if the item is not here.
local meta = redis.call('HMGET', KEYS[1], 'epoch', 'shut', 'seq', 'loading')
if not meta[1] then return {} end
if meta[2] == '2' or meta[4] then return redis.error_reply('FROZEN the item is being loaded') end
local epoch, units = tonumber(meta[1]), 0
for at = 1, #ARGV, 3 do
  if tonumber(ARGV[at + 1]) < epoch and redis.call('HSETNX', KEYS[3], ARGV[at], ARGV[at + 2]) == 1 then
    units = units + struct.unpack('<I4', ARGV[at + 2], 9)
  end
end
if units == 0 then return {epoch, tonumber(meta[3]), 0} end
redis.call('DECRBY', KEYS[2], units)
redis.call('ZADD', KEYS[#KEYS], redis.call('ZINCRBY', KEYS[#KEYS], 1, ''), string.match(KEYS[1], '%d+$'))
redis.call('HINCRBY', KEYS[1], 'units', units)
return {epoch, redis.call('HINCRBY', KEYS[1], 'seq', 1), units}
