-- One shard of an item, at one instant.
--
-- KEYS  meta  stock
-- Answers {epoch, seq, shut, opens, closes, units, left, quiet_ms}, or an empty list if it is not
-- here. quiet_ms is how long ago the load that is under way made its last step; -1: there is none.
local meta = redis.call('HMGET', KEYS[1], 'epoch', 'seq', 'shut', 'opens', 'closes', 'units', 'loading')
if not (meta[1] and meta[2] and meta[3]) then return {} end
local quiet = -1
if meta[7] then
  local time = redis.call('TIME')
  quiet = math.max(0, time[1] * 1000 + math.floor(time[2] / 1000) - tonumber(meta[7]))
end
local reply = {}
for at = 1, 6 do reply[at] = tonumber(meta[at] or '0') end
reply[7] = tonumber(redis.call('GET', KEYS[2]) or '0')
reply[8] = quiet
return reply
