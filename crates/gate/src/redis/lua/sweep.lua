-- Those who were marked before the load and are not any more, because their order was closed and its
-- release is still on its way: the keys of their claims were answered all the same, and stay spent.
--
-- KEYS  meta  before  spent      ARGV  epoch  cursor  rows  keys_max
-- Answers the next cursor, "0" when none is left; nothing if the load is not ours any more.
local meta = redis.call('HMGET', KEYS[1], 'epoch', 'loading')
if meta[1] ~= ARGV[1] or not meta[2] then return false end
local scan = redis.call('HSCAN', KEYS[2], ARGV[2], 'COUNT', ARGV[3])
local none, room = string.rep('\0', 8), tonumber(ARGV[4]) - redis.call('HLEN', KEYS[3])
for at = 1, #scan[2], 2 do
  local mark = scan[2][at + 1]
  local key = string.sub(mark, 17, 24)
  if key ~= none and room > 0 then room = room - redis.call('HSET', KEYS[3], key, mark) end
  redis.call('HDEL', KEYS[2], scan[2][at])
end
local time = redis.call('TIME')
redis.call('HSET', KEYS[1], 'loading', string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000)))
return scan[1]
