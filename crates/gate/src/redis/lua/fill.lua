-- The second step: marks, a chunk at a time. KEYS  meta  users   ARGV  epoch  units  then user  mark …
if redis.call('HGET', KEYS[1], 'epoch') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[2], unpack(ARGV, 3))
redis.call('HINCRBY', KEYS[1], 'units', ARGV[2])
return 1
