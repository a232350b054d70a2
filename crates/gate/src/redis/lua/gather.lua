-- Those whom a loader that died had marked again are put aside with those whom it had not come to.
--
-- A release that knows nothing of those put aside may have finished a load meanwhile. Then somebody can be
-- there with an earlier order: the later one counts, and the key of the earlier one stays spent.
--
-- KEYS  meta  users  before  spent      ARGV  epoch  cursor  rows  keys_max
-- Answers the next cursor, "0" when all are aside; nothing if the load is not ours any more.
local meta = redis.call('HMGET', KEYS[1], 'epoch', 'loading', 'wiped')
if meta[1] ~= ARGV[1] or not meta[2] then return false end
if meta[3] then return '0' end
local scan = redis.call('HSCAN', KEYS[2], ARGV[2], 'COUNT', ARGV[3])
local none, room = string.rep('\0', 8), nil
for at = 1, #scan[2], 2 do
  local user, mark = scan[2][at], scan[2][at + 1]
  local earlier = redis.call('HGET', KEYS[3], user)
  if earlier and string.sub(earlier, 1, 8) ~= string.sub(mark, 1, 8) then
    local key = string.sub(earlier, 17, 24)
    room = room or tonumber(ARGV[4]) - redis.call('HLEN', KEYS[4])
    if key ~= none and room > 0 then room = room - redis.call('HSET', KEYS[4], key, earlier) end
  end
  redis.call('HSET', KEYS[3], user, mark)
  redis.call('HDEL', KEYS[2], user)
end
local time = redis.call('TIME')
redis.call('HSET', KEYS[1], 'loading', string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000)))
return scan[1]
