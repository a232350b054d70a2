-- Tell all who listen, at whichever server. KEYS any (it says which server of a cluster passes it on)
-- ARGV channel message
return redis.call('PUBLISH', ARGV[1], ARGV[2])
