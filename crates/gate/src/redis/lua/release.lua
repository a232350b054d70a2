-- Give units back. Acts only where the buyer's mark still carries this order number, so that twice
-- is once; what comes back is what the mark took, whatever the message says.
--
-- KEYS  meta  stock  users  spent  changed
-- ARGV  spent keys at most, then per unit: user  order_no (8 bytes)
-- Answers {epoch, seq, units}; an empty list if the item is not here. While the item is being
-- loaded nobody can say whether the load contains these units: try again.
local meta = redis.call('HMGET', KEYS[1], 'epoch', 'shut', 'loading')
local epoch = meta[1]
if not epoch then return {} end
if meta[2] == '2' or meta[3] then return redis.error_reply('FROZEN the item is being loaded') end
local none = string.rep('\0', 8)
local units = 0
local room = tonumber(ARGV[1]) - redis.call('HLEN', KEYS[4])
for at = 2, #ARGV, 2 do
  local mark = redis.call('HGET', KEYS[3], ARGV[at])
  if mark and string.sub(mark, 1, 8) == ARGV[at + 1] then
    units = units + struct.unpack('<I4', mark, 9)
    redis.call('HDEL', KEYS[3], ARGV[at])
    local key = string.sub(mark, 17, 24)
    if key ~= none and room > 0 then room = room - redis.call('HSET', KEYS[4], key, mark) end
  end
end
if units == 0 then return {tonumber(epoch), tonumber(redis.call('HGET', KEYS[1], 'seq')), 0} end
redis.call('INCRBY', KEYS[2], units)
redis.call('ZADD', KEYS[#KEYS], redis.call('ZINCRBY', KEYS[#KEYS], 1, ''), string.match(KEYS[1], '%d+$'))
redis.call('HINCRBY', KEYS[1], 'units', -units)
return {tonumber(epoch), redis.call('HINCRBY', KEYS[1], 'seq', 1), units}
