-- These entries are in the ledger: forget them. Only what is really removed is taken off the count,
-- so twice is once; how many claims an entry has is written in it.
--
-- A failover can roll the stream back, and the new primary then gives an id to another entry. Whoever
-- acknowledges says therefore what they have read, by the beginning of a hash of the entry's head (epoch,
-- time, number of claims, first order number). What is something else is left alone, and stays pending
-- with whoever has it in hand.
--
-- KEYS  orders  backlog      ARGV  group  then per entry: id  hash
local gone = 0
for at = 2, #ARGV, 2 do
  local entry = redis.call('XRANGE', KEYS[1], ARGV[at], ARGV[at])[1]
  -- The fields are i, item, b, claims: after epoch and time comes their number.
  local claims = entry and entry[2][4]
  if not entry then
    redis.call('XACK', KEYS[1], ARGV[1], ARGV[at])
  elseif claims and string.sub(redis.sha1hex(string.sub(claims, 1, 32)), 1, 16) == ARGV[at + 1] then
    redis.call('XACK', KEYS[1], ARGV[1], ARGV[at])
    redis.call('XDEL', KEYS[1], ARGV[at])
    gone = gone + struct.unpack('<I8', claims, 17)
  end
end
if gone > 0 then redis.call('DECRBY', KEYS[2], gone) end
return gone
