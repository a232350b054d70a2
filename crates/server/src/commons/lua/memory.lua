-- For how many milliseconds this Redis has known of us. KEYS marker
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('SET', KEYS[1], string.format('%.0f', now), 'NX')
return now - tonumber(redis.call('GET', KEYS[1]))
