if ARGV[6] ~= '0' then c('HSET', meta, 'v', ARGV[6], 've', ARGV[7]) end
if KEYS[3] then
  c('HSET', KEYS[3], 'e', e, 's', n)
  c('PEXPIRE', KEYS[3], ARGV[5])
end
