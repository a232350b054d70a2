-- The last step of a move: it is over, and stays so for whoever sends its first step again.
--
-- KEYS  moves  settled      ARGV  move  item  now_ms
redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2] .. ':' .. ARGV[3])
return 1
