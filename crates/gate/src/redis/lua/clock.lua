-- What time it is here, in milliseconds. KEYS any (it says which server of a cluster is asked)
local time = redis.call('TIME')
return time[1] * 1000 + math.floor(time[2] / 1000)
