-- A challenge is spent once, whichever instance is asked.
--
-- KEYS[1]  the challenges of one minute that were spent, a set
-- ARGV[1]  the challenge
-- ARGV[2]  how long it is remembered, in milliseconds: until none of that minute can be good
-- ARGV[3]  how many fit
-- Answers 1 if it is spent now, 0 if it was before, 2 if there is no room.
if redis.call('SISMEMBER', KEYS[1], ARGV[1]) == 1 then
    return 0
end
if redis.call('SCARD', KEYS[1]) >= tonumber(ARGV[3]) then
    return 2
end
redis.call('SADD', KEYS[1], ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1
