-- Those whom a loader that died had marked again are put aside with those whom it had not come to.
--
-- KEYS  meta  users  before      ARGV  epoch  cursor  rows
-- Answers the next cursor, "0" when all are aside; nothing if the load is not ours any more.
local meta = redis.call('HMGET', KEYS[1], 'epoch', 'loading', 'wiped')
if meta[1] ~= ARGV[1] or not meta[2] then return false end
if meta[3] then return '0' end
local scan = redis.call('HSCAN', KEYS[2], ARGV[2], 'COUNT', ARGV[3])
for at = 1, #scan[2], 2 do
  redis.call('HSETNX', KEYS[3], scan[2][at], scan[2][at + 1])
  redis.call('HDEL', KEYS[2], scan[2][at])
end
local time = redis.call('TIME')
redis.call('HSET', KEYS[1], 'loading', string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000)))
return scan[1]
