-- How long has the oldest entry of a stream been waiting, by this server's own clock? The entry itself,
-- a batch of buyers, stays here.
--
-- KEYS  orders
-- Answers milliseconds, or nothing if the stream is empty.
local first = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', 1)[1]
if not first then return false end
local now = redis.call('TIME')
local now_ms = tonumber(now[1]) * 1000 + math.floor(tonumber(now[2]) / 1000)
local came_ms = tonumber(string.match(first[1], '^(%d+)'))
return math.max(0, now_ms - came_ms)
