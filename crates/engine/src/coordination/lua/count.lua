-- Count one more of what may happen `burst` times at once and once every `step_us` in the long run.
-- KEYS who  ARGV step_us burst
-- Answers 0 if it may happen, and counts it; else the microseconds until it may. What is kept is the time at
-- which all that happened is forgotten; so is the key.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local step = tonumber(ARGV[1])
local till = math.max(tonumber(redis.call('GET', KEYS[1]) or '0'), now) + step
local over = till - now - step * tonumber(ARGV[2])
if over > 0 then return math.ceil(over) end
redis.call('SET', KEYS[1], string.format('%.0f', till), 'PX', math.ceil((till - now) / 1000))
return 0
