-- Shards of some items in one partition, in a few numbers each, at one instant.
--
-- KEYS  meta  stock  users  of each
-- Answers for each {epoch, seq, shut, units, left, marks}, or an empty list if it is not here, not whole, or
-- cannot be read.
local replies = {}
for at = 1, #KEYS, 3 do
  local reply = {}
  local meta = redis.pcall('HMGET', KEYS[at], 'epoch', 'seq', 'shut', 'units', 'loading')
  local left = redis.pcall('GET', KEYS[at + 1])
  local marks = redis.pcall('HLEN', KEYS[at + 2])
  local readable = not meta.err and type(left) ~= 'table' and type(marks) == 'number'
  if readable and meta[1] and meta[2] and meta[3] and not meta[5] then
    for n = 1, 4 do reply[n] = tonumber(meta[n] or '0') end
    reply[5], reply[6] = tonumber(left or '0'), marks
  end
  replies[#replies + 1] = reply
end
return replies
