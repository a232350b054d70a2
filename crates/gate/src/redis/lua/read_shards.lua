-- Shards of some items in one partition, at one instant.
--
-- KEYS  meta  stock  of each
-- Answers for each {epoch, seq, shut, opens, closes, units, left, quiet_ms, server}, or an empty list if
-- it is not here, or {-1} if it cannot be read. quiet_ms is how long ago the load that is under way made its last step; -1: there is
-- none. server is the process it was loaded in, 0 if that is not noted.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local replies = {}
for at = 1, #KEYS, 2 do
  -- Of one that cannot be read nothing is known; the others are no worse for it.
  local meta = redis.pcall('HMGET', KEYS[at],
    'epoch', 'seq', 'shut', 'opens', 'closes', 'units', 'loading', 'server')
  local reply = meta.err and {-1} or {}
  if meta[1] and meta[2] and meta[3] then
    for n = 1, 6 do reply[n] = tonumber(meta[n] or '0') end
    reply[7] = tonumber(redis.call('GET', KEYS[at + 1]) or '0')
    reply[8] = meta[7] and math.max(0, now - tonumber(meta[7])) or -1
    reply[9] = tonumber(meta[8] or '0')
  end
  replies[#replies + 1] = reply
end
return replies
